"""The six oracles over HTTP, with all features at once, on native kernels: a tiny random model over bytes.

One server computes each request alone: no prefix cache, whole prompts, room for all, one thread. The other one has
everything on and no room: a warm prefix cache, short chunks, so few blocks that sequences are preempted, two threads;
one of two runs is by fair shares.
What a request gets from both is the same, bit for bit.
"""

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx
import pytest
from harness import Running, Streamed, assert_error, serving, wait_until

from legato.core.config import SchedulerConfig
from legato.core.types import StepResult
from legato.executor.native import NativeExecutor
from support.byte_level import VOCAB
from support.tiny_engines import open_native, tiny_engine

T = TypeVar("T")

NUM_BLOCKS = 14  # the longest request takes 10, and there are twelve sequences
SHARED = [3 + i * 7 % 256 for i in range(40)]  # what all prompts begin with
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 999}, "b": {"enum": ["x", "yy", None]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
KINDS: list[dict[str, Any]] = [
    {"temperature": 0, "repetition_penalty": 1.3, "presence_penalty": 0.2},
    {"temperature": 1.1, "n": 3, "min_p": 0.001, "frequency_penalty": 0.5, "stop": ["e", "tt"], "ignore_eos": True},
    {"temperature": 1.0, "n": 2, "structured_outputs": {"json": SCHEMA}, "presence_penalty": 0.3},
    {"temperature": 0, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
    {"temperature": 1.5, "structured_outputs": {"regex": "[ab]{9,20}c"}, "logit_bias": {"100": 3, "101": -2}},
    {"temperature": 0.8, "allowed_token_ids": [*range(40, 130)], "min_tokens": 5, "stop_token_ids": [50, 60, 70]},
    {
        "temperature": 1.0,
        "n": 2,
        "top_k": 60,
        "top_p": 0.95,
        "bad_words": ["a", "be"],
        "stop": ["s"],
        "ignore_eos": True,
    },
    {"temperature": 1.2, "echo": True, "include_stop_str_in_output": True, "stop": ["q"], "min_tokens": 2},
]


def bodies() -> list[dict[str, Any]]:
    source = random.Random(5)
    return [
        {
            "prompt": SHARED + [source.randrange(3, VOCAB) for _ in range(3 + 5 * i)],
            "max_tokens": 64,
            "logprobs": 3,
            "seed": i,
            "return_token_ids": True,
            **kind,
        }
        for i, kind in enumerate(KINDS)
    ]


@pytest.fixture(scope="module", params=[("BF16", "bf16", "fcfs"), ("Q4_1", "int8", "fair")], ids=str)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    path = tmp_path_factory.mktemp("engine") / "tiny.legato"
    weights, kv_cache_dtype, policy = request.param
    sizes = {"vocab_size": VOCAB, "max_position_embeddings": 1024, "num_hidden_layers": 2}
    return tiny_engine(path, dtype=lambda name: weights, **sizes), kv_cache_dtype, policy


@pytest.fixture(scope="module")
def alone(model: tuple[Path, str, str]) -> list[dict[str, Any]]:
    path, kv_cache_dtype, _ = model
    executor = open_native(path, kv_cache_dtype=kv_cache_dtype, num_blocks=400, max_rows=512, threads=1)
    with serving(executor, scheduler=SchedulerConfig(enable_prefix_caching=False)) as server:
        answers = [server.complete(**body) for body in bodies()]
        stats = server.server.client.stats()
        assert (stats.preemptions, stats.prefix_queries) == (0, 0)
    return answers


def told(answer: dict[str, Any]) -> tuple[Any, Any]:
    """All but what names the answer and says how it was computed."""
    return answer["choices"], (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"])


def told_all(answers: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    return [told(answer) for answer in answers]


class Gated:
    """An executor whose steps end while `gate` is set."""

    def __init__(self, executor: NativeExecutor) -> None:
        self._executor = executor
        self.gate = threading.Event()
        self.gate.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def collect(self, step_id: int) -> StepResult:
        assert self.gate.wait(60)
        return self._executor.collect(step_id)


class Crowded(NamedTuple):
    server: Running
    gate: threading.Event


@pytest.fixture(scope="module")
def crowded(model: tuple[Path, str, str]) -> Iterator[Crowded]:
    path, kv_cache_dtype, policy = model
    executor = Gated(open_native(path, kv_cache_dtype=kv_cache_dtype, num_blocks=NUM_BLOCKS, max_rows=40, threads=2))
    limits = SchedulerConfig(policy=policy, max_num_seqs=8, max_num_batched_tokens=40, long_prefill_token_threshold=11)
    with serving(executor, scheduler=limits) as server:
        yield Crowded(server, executor.gate)


def together(crowded: Crowded, ask: Callable[[dict[str, Any]], T]) -> list[T]:
    """What each request gets when the engine finds them all at once, in this order."""
    client = crowded.server.server.client
    with ThreadPoolExecutor(len(KINDS)) as pool:
        crowded.gate.clear()
        try:
            answers = []
            for body in bodies():
                answers.append(pool.submit(ask, body))
                wait_until(lambda: client.num_open == len(answers))
        finally:
            crowded.gate.set()
        return [answer.result(60) for answer in answers]


def test_the_answers_are_worth_comparing(alone: list[dict[str, Any]]) -> None:
    """Choices differ, grammars and stop strings end some, and some end by length."""
    ends = [choice["finish_reason"] for answer in alone for choice in answer["choices"]]
    assert {"stop", "length"} <= set(ends)
    assert any(choice["stop_reason"] in ("e", "tt", "s", "q") for answer in alone for choice in answer["choices"])
    assert len({choice["text"] for choice in alone[1]["choices"]}) == 3
    assert all(choice["text"].startswith("{") for choice in (*alone[2]["choices"], *alone[3]["choices"]))
    assert set(alone[4]["choices"][0]["text"]) == {"a", "b", "c"}


def test_solo_cold_and_roomy_is_crowd_warm_and_starved(alone: list[dict[str, Any]], crowded: Crowded) -> None:
    """Oracles 2 to 5, twice: the second time with what the first left in the prefix cache."""
    server, client = crowded.server, crowded.server.server.client
    for _ in range(2):
        before = client.stats()
        assert [told(answer) for answer in together(crowded, lambda body: server.complete(**body))] == told_all(alone)
        server.wait_drained()
        assert client.stats().preemptions > before.preemptions, "it was not starved"
        assert client.stats().prefix_hits > before.prefix_hits, "it was not warm"


def test_streams_are_whole_answers(alone: list[dict[str, Any]], crowded: Crowded) -> None:
    """Oracle 1, while the others stream too."""

    def streamed(body: dict[str, Any]) -> Streamed:
        return crowded.server.stream("/v1/completions", **body, stream_options={"include_usage": True})

    for answer, stream in zip(alone, together(crowded, streamed), strict=True):
        for choice in answer["choices"]:
            found = stream.choices()[choice["index"]]
            ends = (found["text"], found["finish_reason"], found["stop_reason"])
            assert ends == (choice["text"], choice["finish_reason"], choice["stop_reason"])
            _check_tokens(choice, [part for chunk in stream.chunks for part in chunk.get("choices", ())])
        assert stream.usage is not None
        assert stream.usage["completion_tokens"] == answer["usage"]["completion_tokens"]
    crowded.server.wait_drained()


def _check_tokens(choice: dict[str, Any], parts: list[dict[str, Any]]) -> None:
    """The ids and log probabilities of the chunks of a choice, joined, are those of the whole answer."""
    own = [part for part in parts if part["index"] == choice["index"]]
    assert list(chain.from_iterable(part.get("token_ids") or () for part in own)) == choice["token_ids"]
    scores = [part["logprobs"] for part in own if part.get("logprobs")]
    for name in ("tokens", "token_logprobs", "top_logprobs"):
        assert list(chain.from_iterable(score[name] for score in scores)) == choice["logprobs"][name]


POISON: list[dict[str, Any]] = [
    {"prompt": [3] * (NUM_BLOCKS * 16 + 2)},
    {"prompt": "a", "temperature": -1},
    {"prompt": [VOCAB]},
    {"prompt": "a", "structured_outputs": {"json": {"type": "nonsense"}}},
    {"prompt": "a", "structured_outputs": {"regex": "("}},
    {"prompt": "a", "no_such_field": 1},
    {"prompt": ""},
]


def leave(server: Running, body: dict[str, Any]) -> None:
    """A streamed request whose client goes away after the first event."""
    body = body | {"stream": True, "max_tokens": 200, "stop": None}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        next(response.iter_lines())


def test_poison_and_leavers_harm_nobody(alone: list[dict[str, Any]], crowded: Crowded) -> None:
    """Oracles 5 and 6: bad requests are refused, clients leave, and the others get what they get alone."""
    server = crowded.server

    with ThreadPoolExecutor(len(KINDS) + 4) as pool:
        leavers = [pool.submit(leave, server, body) for body in bodies()[:2] + bodies()[5:7]]
        asked = [pool.submit(server.complete, **body) for body in bodies()]
        for poison in POISON:
            assert_error(server.post("/v1/completions", **poison), 400)
        answers = [answer.result(60) for answer in asked]
        for leaver in leavers:
            leaver.result(60)
    assert [told(answer) for answer in answers] == told_all(alone)
    server.wait_drained()
    assert told(server.complete(**bodies()[0])) == told(alone[0]), "and the next one succeeds"
