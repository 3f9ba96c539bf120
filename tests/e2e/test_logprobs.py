"""Log probabilities over HTTP: both shapes, streamed and not, exact bytes, strict JSON."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from harness import MODEL, Running, Script, assert_error, serving

from legato.core.types import StepResult
from support.byte_level import EOS, TOKENIZER, VOCAB, byte_tokens
from support.scripted import ScriptedExecutor

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PROMPT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
HELLO = TOKENIZER.encode("hello")[0]
HEART = byte_tokens("❤")
ANSWER = [HELLO, *byte_tokens(" é"), *HEART]  # ids of characters cut into bytes
TEXT = "hello é❤"


@pytest.fixture(scope="module")
def script() -> Script:
    script = Script()
    script.set(PROMPT.format("hi"), ANSWER)
    script.set("hi", ANSWER)
    script.set("bad", byte_tokens(b"a\xe2\x82b"))
    script.set("wide", byte_tokens("aé STOP"))
    return script


@pytest.fixture(scope="module")
def server(script: Script) -> Iterator[Running]:
    with serving(ScriptedExecutor(vocab_size=VOCAB, emit=script)) as it:
        yield it


def ask(server: Running, **more: Any) -> Any:
    talk: Any = [{"role": "user", "content": "hi"}]
    return server.api.chat.completions.create(model=MODEL, messages=talk, max_tokens=20, logprobs=True, **more)


@pytest.mark.parametrize(("more", "alternatives"), [({}, 0), ({"top_logprobs": 0}, 0), ({"top_logprobs": 5}, 5)])
def test_a09_one_entry_per_output_token(server: Running, more: dict[str, int], alternatives: int) -> None:
    reply = ask(server, **more)
    content = reply.choices[0].logprobs.content
    assert reply.choices[0].message.content == TEXT
    assert len(content) == reply.usage.completion_tokens == len(ANSWER) + 1
    assert all(len(entry.top_logprobs) == alternatives for entry in content)
    assert [entry.logprob for entry in content] == [-0.125 * (token % 8) for token in (*ANSWER, EOS)]
    assert b"".join(bytes(entry.bytes) for entry in content).decode() == TEXT
    assert [entry.token for entry in content] == ["hello", " ", *["\ufffd"] * 5, "<|im_end|>"]
    assert content[-1].bytes == [], "the end token is no part of the message"


def test_a09_a_stream_gives_the_same_entries(server: Running) -> None:
    whole = ask(server, top_logprobs=3).choices[0].logprobs.content
    chunks = [chunk.choices[0] for chunk in ask(server, top_logprobs=3, stream=True)]
    assert [entry for choice in chunks if choice.logprobs for entry in choice.logprobs.content] == whole
    assert "".join(choice.delta.content or "" for choice in chunks) == TEXT


def test_a10_raw_bytes_among_the_alternatives(server: Running) -> None:
    """The 20 best of the scripted executor are ids 0 to 19: control tokens and unprintable bytes."""
    for entry in ask(server, top_logprobs=20).choices[0].logprobs.content:
        assert [bytes(other.bytes) for other in entry.top_logprobs] == [b""] * 3 + [bytes([i]) for i in range(17)]
        assert entry.top_logprobs[2].token == "<|im_end|>"
        assert not any("\u0100" <= char <= "\u0143" for other in entry.top_logprobs for char in other.token)


def test_without_logprobs_there_are_none(server: Running) -> None:
    talk = [{"role": "user", "content": "hi"}]
    assert server.post(CHAT, messages=talk).json()["choices"][0]["logprobs"] is None
    assert server.post(CHAT, messages=talk, logprobs=False, top_logprobs=0).status_code == 200
    assert server.complete("hi")["choices"][0]["logprobs"] is None
    assert all(c["choices"][0]["logprobs"] is None for c in server.stream(COMPLETIONS, prompt="hi").chunks)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"top_logprobs": 2}, "top_logprobs"),
        (CHAT, {"top_logprobs": 2, "logprobs": False}, "top_logprobs"),
        (CHAT, {"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        (CHAT, {"top_logprobs": -1, "logprobs": True}, "top_logprobs"),
        (CHAT, {"top_logprobs": 1.0, "logprobs": True}, "top_logprobs"),
        (CHAT, {"logprobs": 1}, "logprobs"),
        (COMPLETIONS, {"logprobs": -1}, "logprobs"),
        (COMPLETIONS, {"logprobs": 21}, "logprobs"),
        (COMPLETIONS, {"logprobs": True}, "logprobs"),
    ],
)
def test_what_is_refused(server: Running, path: str, fields: dict[str, Any], param: str) -> None:
    body = {"prompt": "hi"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "hi"}]}
    assert_error(server.post(path, **body, **fields), 400, param=param)


@pytest.mark.parametrize("alternatives", [0, 2, 20])
def test_completions_have_four_lists(server: Running, alternatives: int) -> None:
    choice = server.complete("hi", logprobs=alternatives, max_tokens=20)["choices"][0]
    found = choice["logprobs"]
    assert set(found) == {"text_offset", "token_logprobs", "tokens", "top_logprobs"}
    parts = [f"bytes:\\x{token - 3:02x}" for token in ANSWER[2:]]
    assert found["tokens"] == ["hello", " ", *parts, "<|im_end|>"]
    assert found["text_offset"] == [0, 5, 6, 6, 7, 7, 7, 8]
    assert found["token_logprobs"] == [-0.125 * (token % 8) for token in (*ANSWER, EOS)]
    for token, top in zip(found["tokens"], found["top_logprobs"], strict=True):
        assert token in top
        assert alternatives <= len(top) <= alternatives + 1


@pytest.mark.parametrize(
    ("prompt", "more"),
    [
        ("hi", {"max_tokens": 20}),
        ("hi", {"max_tokens": 4}),
        ("bad", {"max_tokens": 20}),
        ("wide", {"max_tokens": 20, "stop": "STOP"}),
        ("hi", {"max_tokens": 20, "include_stop_str_in_output": True, "skip_special_tokens": False}),
        ("hi", {"max_tokens": 20, "stop_token_ids": [HEART[-1]]}),
        (["hi", "wide"], {"max_tokens": 20, "n": 2, "temperature": 1.0}),
    ],
)
def test_stream_is_whole(server: Running, prompt: Any, more: dict[str, Any]) -> None:
    whole = server.complete(prompt, logprobs=2, **more)["choices"]
    joined: dict[int, dict[str, list[Any]]] = {}
    for chunk in server.stream(COMPLETIONS, prompt=prompt, logprobs=2, **more).chunks:
        for choice in chunk["choices"]:
            for key, values in choice["logprobs"].items():
                joined.setdefault(choice["index"], {}).setdefault(key, []).extend(values)
    assert joined == {choice["index"]: choice["logprobs"] for choice in whole}


def test_bytes_join_to_what_is_shown(server: Running) -> None:
    def joined(**more: Any) -> bytes:
        return b"".join(bytes(entry.bytes) for entry in ask(server, extra_body=more).choices[0].logprobs.content)

    assert joined(include_stop_str_in_output=True, skip_special_tokens=False) == f"{TEXT}<|im_end|>".encode()
    assert joined(stop_token_ids=[HEART[-1]]) == TEXT.encode()[:-1]
    assert joined(stop=["é"]) == "hello é".encode(), "up to the end of the stop string"


class Forbidding(ScriptedExecutor):
    """Reports minus infinity for every token, as for a forbidden one."""

    def collect(self, step_id: int) -> StepResult:
        result = super().collect(step_id)
        for i in range(len(result.logprobs)):
            result.logprobs[i] = -math.inf
        tops = tuple(tuple((token, -math.inf) for token, _ in top) for top in result.top_logprobs)
        return StepResult(step_id, result.tokens, result.logprobs, tops, result.faults)


def test_a11_minus_infinity_is_a_finite_floor(script: Script) -> None:
    with serving(Forbidding(vocab_size=VOCAB, emit=script)) as server:
        entries = ask(server, top_logprobs=2).choices[0].logprobs.content
        assert {entry.logprob for entry in entries} == {-9999.0}
        assert {other.logprob for entry in entries for other in entry.top_logprobs} == {-9999.0}
        found = server.complete("hi", logprobs=2)["choices"][0]["logprobs"]
        assert set(found["token_logprobs"]) == {-9999.0}
        assert server.stream(COMPLETIONS, prompt="hi", logprobs=1).done
