"""Beam search over HTTP on a tiny model: exactly the beams of a plain search, whole, streamed and in a crowd."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import MODEL, Running, assert_error, running, serving, wait_until

from legato.core.config import EngineConfig, SchedulerConfig, ServerConfig
from legato.core.errors import RequestError
from legato.core.types import BeamSearchParams, SamplingParams
from legato.engine.assemble import assemble
from legato.engine.llm import LLM
from support.byte_level import ASSETS, EOS, TOKENIZER, VOCAB
from support.drive import logits
from support.plain_beam import plain_beam_search
from support.scripted import ScriptedExecutor
from support.tiny_engines import open_native, write_tiny
from support.tiny_models import tiny_config, tiny_source

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = [int(token) for token in np.random.RandomState(3).randint(3, VOCAB, 20)]
ENDS = list(range(3, VOCAB, 9))[:8]  # so that beams end early too


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tiny_source(tiny_config("llama", vocab_size=VOCAB))
    return write_tiny(tmp_path_factory.mktemp("engine") / "tiny.legato", source, format="fp32")


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[Running]:
    config = EngineConfig(scheduler=SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8))
    with running(assemble(open_native(path, max_seqs=8), ASSETS, config, MODEL), ServerConfig(port=0)) as it:
        yield it


def expected(path: Path, prompt: Sequence[int], width: int, **more: Any) -> list[tuple[tuple[int, ...], float, bool]]:
    executor = open_native(path, max_seqs=64)
    penalty = more.pop("repetition_penalty", 1.0)

    def next_logprobs(tokens: Sequence[int]) -> list[float]:
        row = logits(executor, [*prompt, *tokens])[-1].astype(np.float64)
        values = row - np.log(np.exp(row).sum())
        seen = {*prompt, *tokens}
        return [float(value) * (penalty if token in seen else 1) for token, value in enumerate(values)]

    return plain_beam_search(next_logprobs, width, frozenset([EOS, *more.pop("ends", ())]), **more)


@pytest.mark.parametrize(
    ("width", "fields"),
    [
        (1, {}),
        (4, {}),
        (3, {"length_penalty": 0.0, "early_stopping": True}),
        (3, {"length_penalty": 2.0, "early_stopping": "never"}),
        (3, {"repetition_penalty": 1.3}),
        (4, {"repetition_penalty": 0.7}),
    ],
)
def test_beams_are_those_of_a_plain_search(server: Running, path: Path, width: int, fields: dict[str, Any]) -> None:
    body = {"n": width, "max_tokens": 7, "use_beam_search": True, "stop_token_ids": ENDS, "return_token_ids": True}
    answer = server.complete(PROMPT, **body, logprobs=2, **fields)
    best = expected(path, PROMPT, width, max_tokens=7, ends=ENDS, **fields)
    choices = answer["choices"]
    assert [tuple(choice["token_ids"]) for choice in choices] == [tokens for tokens, _, _ in best]
    assert [choice["finish_reason"] for choice in choices] == ["stop" if ended else "length" for *_, ended in best]
    penalty = fields.get("length_penalty", 1.0)
    for choice, (tokens, score, ended) in zip(choices, best, strict=True):
        shown = tokens[:-1] if ended else tokens
        assert choice["text"] == TOKENIZER.decoder(continuation=True).push(shown) or "\ufffd" in choice["text"]
        assert choice["stop_reason"] == (tokens[-1] if ended and tokens[-1] != EOS else None)
        total, seen = 0.0, {*PROMPT}
        for token, logprob in zip(tokens, choice["logprobs"]["token_logprobs"], strict=True):
            total += logprob * (fields.get("repetition_penalty", 1.0) if token in seen else 1.0)
            seen.add(token)
        assert abs(total / len(tokens) ** penalty - score) < 1e-3, "told as the model gave them"
        assert all(len(top) in (2, 3) for top in choice["logprobs"]["top_logprobs"])
    assert answer["usage"]["completion_tokens"] == sum(len(tokens) for tokens, _, _ in best)
    server.wait_drained()


def test_a_stream_gives_the_final_beams_in_order(server: Running) -> None:
    talk = [{"role": "user", "content": "hi"}]
    body = {"n": 3, "max_tokens": 5, "use_beam_search": True, "return_token_ids": True, "temperature": 0}
    for path, content in ((COMPLETIONS, {"prompt": [PROMPT, PROMPT[:7]]}), (CHAT, {"messages": talk})):
        whole = server.post(path, **content, **body).json()
        stream = server.stream(path, **content, **body, stream_options={"include_usage": True})
        ids: dict[int, list[int]] = {}
        for chunk in stream.chunks:
            for choice in chunk["choices"]:
                ids.setdefault(choice["index"], []).extend(choice.get("token_ids", ()))
        assert ids == {choice["index"]: choice["token_ids"] for choice in whole["choices"]}
        assert list(ids) == sorted(ids), "in order"
        texts = [(c["message"]["content"] if path == CHAT else c["text"]) for c in whole["choices"]]
        assert [choice["text"] for choice in stream.choices().values()] == texts
        assert stream.usage is not None
        assert {**stream.usage, "prompt_tokens_details": 0} == {**whole["usage"], "prompt_tokens_details": 0}


def test_p1_beams_do_not_depend_on_the_crowd(server: Running) -> None:
    bodies = [{"prompt": PROMPT[: 8 + i], "n": 1 + i % 4, "max_tokens": 6, "use_beam_search": True} for i in range(8)]

    def ask(body: dict[str, Any]) -> Any:
        return server.post(COMPLETIONS, **body, return_token_ids=True, logprobs=1).json()["choices"]

    def told(choices: Any) -> Any:
        return [{key: choice[key] for key in ("token_ids", "logprobs", "finish_reason")} for choice in choices]

    alone = [told(ask(body)) for body in bodies]
    with ThreadPoolExecutor(8) as pool:
        assert [told(choices) for choices in pool.map(ask, bodies)] == alone
    server.wait_drained()


@pytest.mark.parametrize("stream", [False, True])
def test_a22_a_client_that_leaves_ends_the_search(server: Running, stream: bool) -> None:
    body = {"prompt": PROMPT, "n": 8, "max_tokens": 200, "use_beam_search": True, "stream": stream, "ignore_eos": True}
    begun = server.engine.loop.stats.steps
    connection = HTTPConnection(server.url.removeprefix("http://"))
    connection.request("POST", COMPLETIONS, json.dumps(body), {"content-type": "application/json"})
    wait_until(lambda: server.engine.loop.stats.steps > begun + 2)
    connection.close()
    server.wait_drained()
    assert server.engine.loop.stats.steps - begun < 200, "it was ended on its way"
    assert server.complete(PROMPT, max_tokens=1)["choices"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"length_penalty": 1.0}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        *(
            ({"use_beam_search": True, **more}, next(iter(more)))
            for more in (
                {"n": 33},
                {"n": 0},
                {"temperature": 0.7},
                {"top_p": 0.9},
                {"top_k": 5},
                {"presence_penalty": 0.1},
                {"stop": "x"},
                {"logit_bias": {"5": 1}},
                {"allowed_token_ids": [5]},
                {"bad_words": ["x"]},
                {"prompt_logprobs": 1},
                {"echo": True},
                {"response_format": {"type": "json_object"}},
                {"structured_outputs": {"choice": ["a"]}},
                {"length_penalty": 11.0},
                {"early_stopping": "sometimes"},
                {"stop_token_ids": list(range(200)), "n": 8},
            )
        ),
    ],
)
def test_what_beam_search_does_not_read_is_refused(server: Running, fields: dict[str, Any], param: str) -> None:
    assert_error(server.post(COMPLETIONS, prompt="hi", **fields), 400, param=param)


def test_neutral_values_and_ends(server: Running) -> None:
    neutral = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "stop": [], "seed": 5}
    body = {"prompt": PROMPT, "use_beam_search": True, "n": 2, "max_tokens": 6, "return_token_ids": True}
    plain, same = (server.post(COMPLETIONS, **body, **more).json()["choices"] for more in ({}, neutral))
    assert [choice["token_ids"] for choice in plain] == [choice["token_ids"] for choice in same]
    first = plain[0]["token_ids"][0]
    late = server.post(COMPLETIONS, **body, stop_token_ids=[first], min_tokens=3).json()["choices"]
    assert all(first not in choice["token_ids"][:3] or len(choice["token_ids"]) > 3 for choice in late)
    assert all(len(choice["token_ids"]) > 3 for choice in late)


def test_defaults_of_the_model_apply(path: Path) -> None:
    body = {"prompt": PROMPT, "use_beam_search": True, "n": 3, "stop_token_ids": ENDS, "return_token_ids": True}
    given = {"repetition_penalty": 1.3, "max_new_tokens": 7, "temperature": 0.3, "top_p": 0.5}
    assets = replace(ASSETS, generation_config=given)
    config = EngineConfig(scheduler=SchedulerConfig(max_num_seqs=8))
    with running(assemble(open_native(path, max_seqs=8), assets, config, MODEL), ServerConfig(port=0)) as server:
        choices = server.post(COMPLETIONS, **body).json()["choices"]
        off = server.post(COMPLETIONS, **body, repetition_penalty=1, max_tokens=5).json()["choices"]
    best = expected(path, PROMPT, 3, max_tokens=7, ends=ENDS, repetition_penalty=1.3)
    assert [tuple(choice["token_ids"]) for choice in choices] == [tokens for tokens, _, _ in best]
    best = expected(path, PROMPT, 3, max_tokens=5, ends=ENDS)
    assert [tuple(choice["token_ids"]) for choice in off] == [tokens for tokens, _, _ in best], (
        "the request has its say"
    )


def test_a_search_is_one_request_in_the_metrics(path: Path) -> None:
    config = EngineConfig(scheduler=SchedulerConfig(max_num_seqs=8))
    with running(assemble(open_native(path, max_seqs=8), ASSETS, config, MODEL), ServerConfig(port=0)) as server:

        def value(name: str, **labels: str) -> float:
            found = server.engine.metrics.registry.get_sample_value(
                f"vllm:{name}", {"model_name": MODEL, "engine": "0", **labels}
            )
            assert found is not None, name
            return found

        body = {"prompt": PROMPT, "use_beam_search": True, "n": 3, "max_tokens": 6, "stop_token_ids": ENDS}
        usage = server.complete(**body)["usage"]
        server.wait_drained()
        assert value("prompt_tokens_total") == usage["prompt_tokens"] == len(PROMPT)
        assert value("generation_tokens_total") == usage["completion_tokens"]
        ends = [value("request_success_total", finished_reason=each) for each in ("stop", "length", "abort", "error")]
        assert (sum(ends), ends[2:]) == (3, [0, 0]), "one for each choice, as without a search"
        per_request = ("request_prompt_tokens", "request_params_n", "request_params_max_tokens")
        assert [value(f"{name}_count") for name in per_request] == [1, 1, 1]
        assert (value("request_params_n_sum"), value("request_params_max_tokens_sum")) == (3, 6)
        per_choice = ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_inference_time")
        assert [value(f"{name}_seconds_count") for name in per_choice] == [3, 3, 3, 3]
        assert value("request_time_per_output_token_seconds_count") == 0, "they came all at once"
        assert value("request_queue_time_seconds_sum") < value("e2e_request_latency_seconds_sum")


def test_a_full_queue_refuses_searches_but_breaks_none(path: Path) -> None:
    scheduler = SchedulerConfig(max_num_seqs=2, max_num_queued_reqs=4)
    with running(
        assemble(open_native(path, max_seqs=2), ASSETS, EngineConfig(scheduler=scheduler), MODEL), ServerConfig(port=0)
    ) as server:
        body = {"prompt": PROMPT, "use_beam_search": True, "n": 4, "max_tokens": 12, "ignore_eos": True}
        with ThreadPoolExecutor(6) as pool:
            statuses = [answer.status_code for answer in pool.map(lambda _: server.post(COMPLETIONS, **body), range(6))]
        assert set(statuses) <= {200, 429}
        assert 200 in statuses
        server.wait_drained()
        assert_error(server.post(COMPLETIONS, **{**body, "n": 5}), 400, param="n")


def test_offline_searches_are_those_of_the_server(server: Running, path: Path) -> None:
    prompts: list[Any] = [{"prompt_token_ids": PROMPT[:k]} for k in (20, 7, 12)]
    config = EngineConfig(scheduler=SchedulerConfig(max_num_seqs=8))
    with LLM.over(assemble(open_native(path, max_seqs=8), ASSETS, config, MODEL)) as llm:
        params = BeamSearchParams(beam_width=3, max_tokens=6, length_penalty=0.5)
        found = llm.beam_search(prompts, params)
        assert found == llm.beam_search(prompts, params, concurrency_limit=1)
        for prompt, output in zip(prompts, found, strict=True):
            ids = prompt["prompt_token_ids"]
            body = {"n": 3, "max_tokens": 6, "length_penalty": 0.5, "use_beam_search": True}
            choices = server.complete(ids, **body, return_token_ids=True, logprobs=1)["choices"]
            assert [beam.tokens for beam in output.sequences] == [[*ids, *each["token_ids"]] for each in choices]
            for beam, choice in zip(output.sequences, choices, strict=True):
                assert beam.cum_logprob == pytest.approx(sum(choice["logprobs"]["token_logprobs"]))
                assert (beam.finish_reason, beam.stop_reason) == (choice["finish_reason"], choice["stop_reason"])
                assert beam.text == TOKENIZER.decode(beam.tokens)
                assert [len(each) for each in beam.logprobs] == [6] * len(choice["token_ids"])
        for wrong, param in (
            (replace(params, beam_width=33), "n"),
            (replace(params, temperature=0.5), "temperature"),
            (replace(params, length_penalty=99.0), "length_penalty"),
            (replace(params, max_tokens=0), "max_tokens"),
        ):
            with pytest.raises(RequestError) as caught:
                llm.beam_search(prompts, wrong)
            assert caught.value.param == param
        assert llm.generate(prompts[0], SamplingParams(max_tokens=2))[0].outputs[0].token_ids


def test_a_search_that_fails_says_so_once() -> None:
    """P2: the fault of one beam ends all choices of its request, and no other request."""
    executor = ScriptedExecutor(vocab_size=VOCAB, faulty=lambda history: len(history) == 24 and history[0] == 7)
    with serving(executor) as server:
        bad = [7, *PROMPT]
        body = {"use_beam_search": True, "n": 3, "max_tokens": 9, "ignore_eos": True}
        with ThreadPoolExecutor(2) as pool:
            good = pool.submit(server.complete, PROMPT, **body)
            assert_error(server.post(COMPLETIONS, prompt=bad, **body), 500, code="engine_error")
            assert len(good.result(30)["choices"]) == 3
        server.wait_drained()
        assert not server.engine.loop._searches._beams
        assert not server.engine.loop._searches._searches


def test_a_hint_pins_the_prompt_of_a_search_and_usage_tells(server: Running) -> None:
    body = {"prompt": [11, *PROMPT], "n": 2, "use_beam_search": True, "max_tokens": 2}
    found = [server.complete(**body, cache_control={"type": "ephemeral"})["usage"] for _ in range(2)]
    assert [each["cache_creation_input_tokens"] for each in found] == [16, 0]
    assert [each["cache_read_input_tokens"] for each in found] == [0, 16]
