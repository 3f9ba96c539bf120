"""Fields that change what an answer holds and how it comes: token ids, names of tokens, ids, paces, running usage."""

from collections.abc import Iterator
from typing import Any

import pytest
from harness import MODEL, Running, Script, assert_error, serving

from support.byte_level import EOS, TOKENIZER, VOCAB, byte_tokens
from support.scripted import ScriptedExecutor

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
TALK: Any = [{"role": "user", "content": "hi"}]
ANSWER = byte_tokens("it is so")


def scripted() -> ScriptedExecutor:
    script = Script()
    script.set("hi", ANSWER)
    script.set("ho", byte_tokens("what"))
    script.set(PROMPT, ANSWER)
    return ScriptedExecutor(vocab_size=VOCAB, emit=script)


@pytest.fixture(scope="module")
def executor() -> ScriptedExecutor:
    return scripted()


@pytest.fixture(scope="module")
def server(executor: ScriptedExecutor) -> Iterator[Running]:
    with serving(executor) as it:
        yield it


def body_of(path: str, **more: Any) -> dict[str, Any]:
    return {**({"prompt": "hi"} if path == COMPLETIONS else {"messages": TALK}), "max_tokens": 20, **more}


def test_the_fingerprint_names_what_computes_and_stays(server: Running) -> None:
    reply = server.api.chat.completions.create(model=MODEL, messages=TALK)
    assert reply.system_fingerprint == f"legato-0.1.0/{MODEL}//kv-/scripted"
    chunks = server.stream(COMPLETIONS, prompt="hi").chunks
    assert {chunk["system_fingerprint"] for chunk in chunks} == {reply.system_fingerprint}


def test_token_ids_of_completions(server: Running) -> None:
    choices = server.complete(["hi", "ho"], return_token_ids=True, max_tokens=20)["choices"]
    assert [choice["token_ids"] for choice in choices] == [[*ANSWER, EOS], [*byte_tokens("what"), EOS]]
    assert [choice["prompt_token_ids"] for choice in choices] == [TOKENIZER.encode(text) for text in ("hi", "ho")]
    joined: dict[int, list[int]] = {0: [], 1: []}
    prompts: dict[int, list[int]] = {}
    for chunk in server.stream(COMPLETIONS, prompt=["hi", "ho"], return_token_ids=True, max_tokens=20).chunks:
        [choice] = chunk["choices"]
        joined[choice["index"]] += choice.get("token_ids", [])
        if "prompt_token_ids" in choice:
            assert choice["index"] not in prompts, "said once, first"
            prompts[choice["index"]] = choice["prompt_token_ids"]
    assert joined == {choice["index"]: choice["token_ids"] for choice in choices}
    assert prompts == {choice["index"]: choice["prompt_token_ids"] for choice in choices}


def test_token_ids_of_chat(server: Running) -> None:
    whole = server.post(CHAT, messages=TALK, return_token_ids=True).json()
    assert whole["choices"][0]["token_ids"] == [*ANSWER, EOS]
    assert whole["prompt_token_ids"] == TOKENIZER.encode(PROMPT, parse_special=True)
    chunks = server.stream(CHAT, messages=TALK, return_token_ids=True).chunks
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])
    ids = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])]
    assert ids == whole["choices"][0]["token_ids"]
    assert "token_ids" not in server.post(CHAT, messages=TALK).json()["choices"][0]


def test_tokens_may_be_named_by_their_ids(server: Running) -> None:
    names = [f"token_id:{token}" for token in (*ANSWER, EOS)]
    more = {"return_tokens_as_token_ids": True, "max_tokens": 20}
    found = server.complete("hi", logprobs=2, **more)["choices"][0]["logprobs"]
    assert found["tokens"] == names
    assert all(
        {"token_id:0", "token_id:1", name} == set(top) for name, top in zip(names, found["top_logprobs"], strict=True)
    )
    content = server.post(CHAT, messages=TALK, logprobs=True, top_logprobs=1, **more).json()["choices"][0]["logprobs"]
    assert [entry["token"] for entry in content["content"]] == names
    assert {entry["top_logprobs"][0]["token"] for entry in content["content"]} == {"token_id:0"}
    assert b"".join(bytes(entry["bytes"]) for entry in content["content"]).decode() == "it is so"


def test_log_probabilities_of_chosen_ids(server: Running) -> None:
    more = {"logprob_token_ids": [9, 4], "max_tokens": 3}
    content = server.post(CHAT, messages=TALK, logprobs=True, **more).json()["choices"][0]["logprobs"]["content"]
    assert [[bytes(other["bytes"]) for other in entry["top_logprobs"]] for entry in content] == [[b"\x06", b"\x01"]] * 3
    assert_error(server.post(COMPLETIONS, prompt="hi", **more), 400, param="logprob_token_ids")
    assert_error(
        server.post(COMPLETIONS, prompt="hi", logprobs=0, logprob_token_ids=[VOCAB]), 400, param="logprob_token_ids"
    )


def test_bad_words_reach_the_sampler(server: Running, executor: ScriptedExecutor) -> None:
    executor.plans.clear()
    assert server.complete("hi", bad_words=["so"], max_tokens=1)
    assert executor.plans[0].resets[0].bad_words == (tuple(byte_tokens("so")), tuple(byte_tokens(" so")))
    assert_error(server.post(COMPLETIONS, prompt="hi", bad_words=[""]), 400, param="bad_words")
    assert_error(server.post(COMPLETIONS, prompt="hi", bad_words="so"), 400, param="bad_words")
    assert_error(server.post(COMPLETIONS, prompt="hi", bad_words=["x"] * 129), 400, param="bad_words")


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a28_a_request_id_is_a_label_of_the_answer(server: Running, path: str) -> None:
    prefix = "cmpl" if path == COMPLETIONS else "chatcmpl"
    for _ in range(2):
        answer = server.post(path, **body_of(path, request_id="mine"))
        assert answer.json()["id"] == f"{prefix}-mine"
    assert {chunk["id"] for chunk in server.stream(path, **body_of(path, request_id="x")).chunks} == {f"{prefix}-x"}
    for wrong in ("", "a b", "a\r\nb", "\u00e9", "a" * 129, "a" * (1 << 20)):
        assert_error(server.post(path, **body_of(path, request_id=wrong)), 400, param="request_id")


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("interval", [1, 3, 100])
def test_stream_interval_joins_chunks_and_loses_nothing(server: Running, path: str, interval: int) -> None:
    body = body_of(path, logprobs=1 if path == COMPLETIONS else True, return_token_ids=True)
    plain = server.stream(path, **body)
    slow = server.stream(path, **body, stream_interval=interval, stream_options={"include_usage": True})
    assert slow.choices()[0]["text"] == plain.choices()[0]["text"] == "it is so"
    sizes = [len(c["choices"][0]["token_ids"]) for c in slow.chunks if c["choices"] and "token_ids" in c["choices"][0]]
    assert sizes == {1: [1] * 9, 3: [1, 3, 3, 2], 100: [1, 8]}[interval]
    assert slow.usage is not None
    assert slow.usage["completion_tokens"] == 9
    for wrong in (0, -1, 1.5, True):
        assert_error(server.post(path, **body, stream=True, stream_interval=wrong), 400, param="stream_interval")


def test_the_servers_stream_interval_is_the_least() -> None:
    with serving(scripted(), stream_interval=4) as server:
        for asked, sizes in ((None, [1, 4, 4]), (2, [1, 4, 4]), (7, [1, 7, 1])):
            body = body_of(COMPLETIONS, return_token_ids=True, stream_interval=asked)
            chunks = server.stream(COMPLETIONS, **body).chunks
            found = [len(chunk["choices"][0].get("token_ids", ())) for chunk in chunks[1:]]
            assert found == sizes, "the first and the last one come at once"


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a07_usage_may_come_with_every_chunk(server: Running, path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = server.stream(path, **body_of(path), stream_options=options)
    *chunks, last = [chunk["usage"] for chunk in stream.chunks]
    assert chunks[-1] == last == server.post(path, **body_of(path)).json()["usage"]
    counts = [usage["completion_tokens"] for usage in chunks]
    assert counts == sorted(counts)
    assert set(counts) == set(range(1, 10))
    refused = server.post(path, **body_of(path), stream=True, stream_options={"continuous_usage_stats": True})
    assert_error(refused, 400, param="stream_options.continuous_usage_stats")
