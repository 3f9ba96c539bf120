"""Sampling over HTTP on a tiny native model: seeds, loads, settings that must not leak or be ignored, padded rows."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import openai
import pytest
from harness import MODEL, Running, Script, running, serving

from legato.core.config import EngineConfig, SchedulerConfig, ServerConfig
from legato.engine.assemble import assemble
from support.byte_level import ASSETS, EOS, VOCAB, byte_tokens
from support.scripted import ScriptedExecutor
from support.tiny_engines import open_native, write_tiny
from support.tiny_models import tiny_config, tiny_source

COMPLETIONS = "/v1/completions"
PADDING = 20
PROMPT = [int(token) for token in np.random.RandomState(4).randint(3, VOCAB, 12)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """More rows of logits than the tokenizer has ids, and the largest logit of every row is in the padding."""
    source = tiny_source(tiny_config("llama", vocab_size=VOCAB + PADDING, tie_word_embeddings=False))
    head = source.arrays["lm_head.weight"]
    head[VOCAB + 3], head[VOCAB + 4] = 9 * np.sign(head[5]), -9 * np.sign(head[5])
    path = write_tiny(tmp_path_factory.mktemp("engine") / "tiny.legato", source, format="int8")
    config = EngineConfig(scheduler=SchedulerConfig(max_num_batched_tokens=48, max_num_seqs=6))
    engine = assemble(open_native(path, max_seqs=6, num_blocks=40), ASSETS, config, MODEL)
    with running(engine, ServerConfig(port=0)) as it:
        yield it


def told(server: Running, **body: Any) -> list[Any]:
    """Tokens, log probabilities and end of each choice."""
    body = {"prompt": PROMPT, "max_tokens": 12, "ignore_eos": True, "logprobs": 2, **body}
    answer = server.post(COMPLETIONS, **body, return_token_ids=True)
    assert answer.status_code == 200, answer.text
    return [(c["token_ids"], c["logprobs"]["token_logprobs"], c["finish_reason"]) for c in answer.json()["choices"]]


def tokens(server: Running, **body: Any) -> list[int]:
    ids: list[int] = told(server, **body)[0][0]
    return ids


def test_d14_padded_rows_are_never_sampled(server: Running) -> None:
    for temperature in (0, 2):
        body = {"prompt": PROMPT, "max_tokens": 40, "temperature": temperature, "ignore_eos": True, "logprobs": 20}
        choice = server.complete(**body, return_token_ids=True, return_tokens_as_token_ids=True)["choices"][0]
        assert max(choice["token_ids"]) < VOCAB
        named = {name for top in choice["logprobs"]["top_logprobs"] for name in top}
        assert max(int(name.removeprefix("token_id:")) for name in named) < VOCAB
        assert min(choice["logprobs"]["token_logprobs"]) > -9000
        assert server.complete(choice["token_ids"], max_tokens=1)["choices"], "what comes out may go in"
    for field in ({"allowed_token_ids": [VOCAB]}, {"logit_bias": {str(VOCAB): 1}}, {"stop_token_ids": [VOCAB]}):
        assert server.post(COMPLETIONS, prompt=PROMPT, **field).status_code == 400


def test_d01_d03_d04_a_request_is_the_same_beside_any_others(server: Running) -> None:
    """Seeded, greedy, and several choices: alone, and four times each among 45 unseeded neighbours of all kinds."""
    watched: list[dict[str, Any]] = [
        {"seed": 42, "temperature": 1},
        {"temperature": 0},
        {"seed": 7, "n": 4, "temperature": 1.2, "top_p": 0.9},
        {"seed": 9, "repetition_penalty": 1.4, "frequency_penalty": 0.4, "max_tokens": 30},
    ]
    alone = [told(server, **body) for body in watched]
    assert len({tuple(choice[0]) for choice in alone[2]}) == 4, "choices differ"
    rng = np.random.RandomState(1)
    crowd: list[dict[str, Any]] = [
        {
            "prompt": [int(token) for token in rng.randint(3, VOCAB, rng.randint(1, 60))],
            "max_tokens": int(rng.randint(1, 15)),
            **[{}, {"top_k": 3}, {"temperature": 0}, {"logit_bias": {"70": 9}}, {"presence_penalty": 1.5}][i % 5],
        }
        for i in range(45)
    ]
    bodies = [body for i, body in enumerate(crowd) for body in ([body, watched[i % 4]] if i < 16 else [body])]
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda body: told(server, **body), bodies))
    for body, answer in zip(bodies, answers, strict=True):
        if body in watched:
            assert answer == alone[watched.index(body)], body
    server.wait_drained()


def test_d06_settings_stay_with_their_row(server: Running) -> None:
    """Rows of all kinds side by side, the first of which leaves first."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0, "max_tokens": 1},
        {"temperature": 0},
        {"top_k": 2, "seed": 1},
        {"top_p": 0.3, "seed": 2, "max_tokens": 5},
        {"min_p": 0.5, "seed": 3},
        {"temperature": 0, "repetition_penalty": 1.8, "presence_penalty": 1.0},
        {"temperature": 0, "logit_bias": {"99": 100}, "max_tokens": 4},
        {"temperature": 0, "allowed_token_ids": [50, 51, 52]},
        {"temperature": 0, "bad_words": ["a", "b", "c"], "max_tokens": 7},
        {"seed": 4, "min_tokens": 6, "ignore_eos": False, "stop_token_ids": list(range(3, 120))},
        {"temperature": 0, "prompt_logprobs": 1},
    ]
    alone = [told(server, **kind) for kind in kinds]
    with ThreadPoolExecutor(len(kinds)) as pool:
        for order in (kinds, kinds[::-1]):
            together = list(pool.map(lambda kind: told(server, **kind), order))
            assert together == [alone[kinds.index(kind)] for kind in order]


def test_d10_every_setting_has_an_effect(server: Running) -> None:
    greedy = tokens(server, temperature=0)
    hot: dict[str, Any] = {"temperature": 2.0, "seed": 5}
    sampled = tokens(server, **hot)
    assert sampled != greedy
    assert tokens(server, **{**hot, "seed": 6}) != sampled
    for strict in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        assert tokens(server, **hot, **strict) == greedy
    for loose in ({"top_k": 50}, {"top_p": 0.5}, {"min_p": 0.1}, {"top_k": 3, "top_p": 1.0, "seed": 8}):
        assert tokens(server, temperature=0, **loose) == greedy, "D16: at temperature 0 nothing is drawn"
    first = greedy[0]
    assert tokens(server, temperature=0, logit_bias={str(first): -100})[0] != first
    assert tokens(server, temperature=0, logit_bias={"200": 100}) == [200] * 12
    assert set(tokens(server, temperature=0, allowed_token_ids=[30, 31])) <= {30, 31}
    held = {"temperature": 0, "logit_bias": {"200": 100}}
    assert len(set(tokens(server, **held, repetition_penalty=1e6))) > 1
    few = {"temperature": 0, "allowed_token_ids": list(range(30, 60)), "max_tokens": 30}
    for penalty in ("presence_penalty", "frequency_penalty"):
        assert tokens(server, **few, **{penalty: 2.0}) != tokens(server, **few)
    letter = byte_tokens("k")[0]
    wanted = {"temperature": 0, "logit_bias": {str(letter): 100}}
    assert letter not in tokens(server, **wanted, bad_words=["k"])
    assert tokens(server, **wanted, stop_token_ids=[letter]) == [letter]
    assert len(tokens(server, **wanted, stop=["kk"])) == 2
    ends = {"temperature": 0, "logit_bias": {str(EOS): 100}, "ignore_eos": False}
    assert tokens(server, **ends) == [EOS]
    assert len(tokens(server, **ends, min_tokens=3)) == 4
    assert len(tokens(server, **{**ends, "ignore_eos": True})) == 12


def test_d08_a_list_of_end_tokens() -> None:
    """Either ends an answer and is not shown; ignore_eos passes both."""
    script = Script()
    script.set("hi", [*byte_tokens("x"), 1, *byte_tokens("y"), EOS, *byte_tokens("z")])
    script.set("ho", [*byte_tokens("x"), EOS])
    with serving(ScriptedExecutor(vocab_size=VOCAB, emit=script), replace(ASSETS, eos_token_ids=(1, EOS))) as server:
        for prompt in ("hi", "ho"):
            choice = server.complete(prompt)["choices"][0]
            assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("x", "stop", None)
        assert server.complete("hi", ignore_eos=True, max_tokens=5)["choices"][0]["text"] == "xyz"
        stopped = server.complete("hi", ignore_eos=True, max_tokens=5, stop_token_ids=[EOS])["choices"][0]
        assert (stopped["text"], stopped["stop_reason"]) == ("xy", EOS)


def test_a31_a_failure_in_mid_stream_is_no_success() -> None:
    """The fourth token fails once the first one has been read."""
    script, read = Script(), threading.Event()
    script.set("hi", byte_tokens("abcdefgh"))
    executor = ScriptedExecutor(vocab_size=VOCAB, emit=script, faulty=lambda h: len(h) == 5 and read.wait(20))
    body: dict[str, Any] = {"prompt": "hi", "max_tokens": 20, "stream": True, "logprobs": 1}
    with serving(executor) as server:
        with server.http.stream("POST", COMPLETIONS, json=body) as response:
            lines = response.iter_lines()
            data = [next(lines)]
            read.set()
            data += [line for line in lines if line]
        *chunks, last = [json.loads(line.removeprefix("data: ")) for line in data]
        assert set(last) == {"error"}
        assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]] == [None] * 3, "and no more"
        read.clear()
        events = iter(server.api.completions.create(model=MODEL, **body))
        assert next(events).choices[0].text == "a"
        read.set()
        with pytest.raises(openai.APIError):
            list(events)
        assert server.post(COMPLETIONS, prompt="hi", max_tokens=20).status_code == 500
        assert server.complete("hi", max_tokens=2)["choices"][0]["text"] == "ab"


def chunks_before_an_error(executor: ScriptedExecutor, body: dict[str, Any], read: threading.Event) -> list[Any]:
    """The chunks of a stream that ends with an error. `read` is set once something has come."""
    with serving(executor) as server, server.http.stream("POST", COMPLETIONS, json=body) as response:
        data = []
        for line in response.iter_lines():
            data += [json.loads(line.removeprefix("data: "))] if line else []
            read.set()
    *chunks, last = data
    assert set(last) == {"error"}
    return chunks


@pytest.mark.parametrize("more", [{"stream_interval": 100}, {"stop": ["cdX"]}, {"stop": ["cdX"], "stream_interval": 3}])
def test_a31_what_was_held_back_comes_before_the_error(more: dict[str, Any]) -> None:
    """The fifth token fails once the first one has been read: "bcd" waits for others, or for the rest of a stop."""
    script, read = Script(), threading.Event()
    script.set("hi", byte_tokens("abcdefgh"))
    script.set("ho", byte_tokens("mnopqrstuv"))
    executor = ScriptedExecutor(
        vocab_size=VOCAB, emit=script, faulty=lambda h: h[-1] == byte_tokens("d")[0] and read.wait(20)
    )
    body: dict[str, Any] = {"prompt": ["hi", "ho"], "max_tokens": 20, "stream": True, **more}
    chunks = chunks_before_an_error(executor, body, read)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert {choice["finish_reason"] for choice in choices} == {None}
    texts = ["".join(choice["text"] for choice in choices if choice["index"] == i) for i in (0, 1)]
    assert texts[0] == "abcd"
    assert len(texts[1]) >= 4, "what others had waiting comes too"
    assert "mnopqrstuv".startswith(texts[1])


def test_a31_what_an_engine_held_back_when_it_failed_comes_too() -> None:
    script, read = Script(), threading.Event()
    script.set("hi", byte_tokens("abcdefgh"))
    executor = ScriptedExecutor(vocab_size=VOCAB, emit=script)
    collect = executor.collect

    def failing(step_id: int) -> Any:
        if step_id == 3:
            read.wait(20)
            raise RuntimeError("broken")
        return collect(step_id)

    executor.collect = failing  # type: ignore[method-assign]
    body: dict[str, Any] = {"prompt": "hi", "max_tokens": 20, "stream": True, "stop": ["bcX"]}
    chunks = chunks_before_an_error(executor, body, read)
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == "abc"
