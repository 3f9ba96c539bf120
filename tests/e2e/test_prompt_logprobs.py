"""echo and prompt_logprobs: the prompt is repeated and scored, over a scripted executor and against the reference."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import MODEL, Running, Script, assert_error, running, serving

from legato.core.config import EngineConfig, SchedulerConfig, ServerConfig
from legato.engine.assemble import assemble
from support.byte_level import ASSETS, TOKENIZER, VOCAB, byte_level_assets, byte_tokens
from support.drive import logits
from support.executors import reference
from support.scripted import ScriptedExecutor
from support.tiny_engines import open_native, write_tiny
from support.tiny_models import tiny_config, tiny_source

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PROMPT = "hello é❤, STOP <|im_end|>"  # characters of several tokens, pieces of several bytes, a control token
IDS = TOKENIZER.encode(PROMPT, parse_special=True)
ANSWER = byte_tokens("❤!")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    script = Script()
    script.set(PROMPT, ANSWER)
    with serving(ScriptedExecutor(vocab_size=VOCAB, emit=script)) as it:
        yield it


def score(token: int) -> float:
    """What the scripted executor says of any token."""
    return -0.125 * (token % 8)


def test_a14_echo_scores_the_prompt(server: Running) -> None:
    choice = server.complete(PROMPT, echo=True, logprobs=1, max_tokens=1)["choices"][0]
    found = choice["logprobs"]
    assert choice["text"] == PROMPT + "\ufffd"
    tokens = [*IDS, ANSWER[0]]
    assert found["token_logprobs"] == [None, *map(score, tokens[1:])]
    assert found["top_logprobs"][0] is None
    assert all(name in top for name, top in zip(found["tokens"][1:], found["top_logprobs"][1:], strict=True))
    assert [len(found[key]) for key in found] == [len(IDS) + 1] * 4
    offsets = found["text_offset"]
    assert offsets == sorted(offsets)
    assert (offsets[0], offsets[-1]) == (0, len(PROMPT))
    for name, begin, end in zip(found["tokens"], offsets, offsets[1:], strict=False):
        assert name.startswith("bytes:") or PROMPT[begin:end] == name


@pytest.mark.parametrize("logprobs", [None, 0, 2])
@pytest.mark.parametrize("prompt", [PROMPT, IDS, [PROMPT, "hi"]])
def test_a14_a_stream_echoes_the_same(server: Running, prompt: Any, logprobs: int | None) -> None:
    body = {"prompt": prompt, "echo": True, "logprobs": logprobs, "max_tokens": 9, "n": 2, "temperature": 1.0}
    whole = server.post(COMPLETIONS, **body).json()["choices"]
    stream = server.stream(COMPLETIONS, **body)
    texts = {index: choice["text"] for index, choice in stream.choices().items()}
    assert texts == {choice["index"]: choice["text"] for choice in whole}
    assert texts[1] == PROMPT + "❤!"
    joined: dict[int, list[Any]] = {}
    for chunk in stream.chunks:
        for choice in chunk["choices"]:
            joined.setdefault(choice["index"], []).extend((choice["logprobs"] or {}).get("token_logprobs", ()))
    assert joined == {c["index"]: c["logprobs"]["token_logprobs"] if c["logprobs"] else [] for c in whole}


@pytest.mark.parametrize("more", [{"echo": True}, {"echo": True, "logprobs": 2}, {"prompt_logprobs": 0}])
def test_a14_nothing_but_the_prompt(server: Running, more: dict[str, Any]) -> None:
    body = {"prompt": PROMPT, "max_tokens": 0, **more}
    answer = server.post(COMPLETIONS, **body).json()
    [choice] = answer["choices"]
    assert choice["text"] == (PROMPT if "echo" in more else "")
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    if "logprobs" in more:
        assert len(choice["logprobs"]["tokens"]) == len(IDS)
    assert ("prompt_logprobs" in choice) == ("prompt_logprobs" in more)
    if "prompt_logprobs" not in more:
        assert server.stream(COMPLETIONS, **body).choices()[0]["text"] == PROMPT
    server.wait_drained()


def test_prompt_logprobs_of_completions_and_chat(server: Running) -> None:
    [choice] = server.complete(PROMPT, prompt_logprobs=2, max_tokens=1)["choices"]
    first, *rest = choice["prompt_logprobs"]
    assert first is None
    assert choice["logprobs"] is None
    for token, entry in zip(IDS[1:], rest, strict=True):
        assert entry[str(token)]["logprob"] == score(token)
        assert set(entry) == {"0", "1", str(token)}
        assert [entry[id]["rank"] for id in ("0", "1")] == [1, 2]
        assert entry[str(token)]["decoded_token"] == TOKENIZER.token_bytes(token).decode(errors="replace")
    talk = [{"role": "user", "content": "hi"}]
    chat = server.post(CHAT, messages=talk, prompt_logprobs=0, max_tokens=2, return_token_ids=True).json()
    assert [set(entry) for entry in chat["prompt_logprobs"][1:]] == [{str(id)} for id in chat["prompt_token_ids"][1:]]
    assert "prompt_logprobs" not in server.post(CHAT, messages=talk).json()


def test_an_echo_has_no_begin_token_that_nobody_wrote() -> None:
    with serving(ScriptedExecutor(vocab_size=VOCAB, emit=Script()), byte_level_assets(add_bos=True)) as server:
        choice = server.complete("hi", echo=True, logprobs=0, max_tokens=1)["choices"][0]
        assert choice["text"] == "hi"
        assert choice["logprobs"]["text_offset"] == [0, 0, 1, 2]
        bare = server.complete("hi", echo=True, logprobs=0, max_tokens=1, add_special_tokens=False)["choices"][0]
        assert bare["logprobs"]["text_offset"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"prompt_logprobs": 21}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt_logprobs": -1}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (CHAT, {"prompt_logprobs": True}, "prompt_logprobs"),
        (COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, {"echo": True, "max_tokens": -1}, "max_tokens"),
        (COMPLETIONS, {"echo": 1}, "echo"),
        (CHAT, {"max_tokens": 0}, "max_tokens"),
    ],
)
def test_what_is_refused(server: Running, path: str, fields: dict[str, Any], param: str) -> None:
    body = {"prompt": "hi"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "hi"}]}
    assert_error(server.post(path, **body, **fields), 400, param=param)


@pytest.mark.parametrize("length", [15, 16, 17, 48])
def test_a15_scores_are_those_of_the_reference_and_the_same_twice(tmp_path: Path, length: int) -> None:
    """Prompts around the size of a block, twice; in chunks of 16 as in one."""
    source = tiny_source(tiny_config("llama", vocab_size=VOCAB))
    path = write_tiny(tmp_path / "tiny.legato", source, format="fp32")
    prompt = [int(token) for token in np.random.RandomState(length).randint(3, VOCAB, length)]
    raw = logits(reference(source, tmp_path), prompt).astype(np.float64)
    logprobs = raw - np.log(np.exp(raw).sum(axis=1, keepdims=True))
    expected = [float(logprobs[i, token]) for i, token in enumerate(prompt[1:])]
    found = []
    for rows in (64, 16):
        config = EngineConfig(scheduler=SchedulerConfig(max_num_batched_tokens=rows, max_num_seqs=4))
        engine = assemble(open_native(path, max_seqs=4, max_rows=rows), ASSETS, config, MODEL)
        with running(engine, ServerConfig(port=0)) as server:
            for _ in range(2):
                answer = server.complete(prompt, echo=True, logprobs=3, max_tokens=1, seed=1)
                assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
                found.append(answer["choices"][0])
    assert found[0] == found[1] == found[2] == found[3]
    first, *scores = found[0]["logprobs"]["token_logprobs"]
    assert first is None
    assert len(scores) == length
    np.testing.assert_allclose(scores[:-1], expected, atol=2e-3)
