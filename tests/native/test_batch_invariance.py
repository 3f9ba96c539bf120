"""P1 on the plan runner: a request's tokens and log probabilities depend on the request alone, bit for bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from legato.core.config import SchedulerConfig
from legato.core.types import Request
from legato.executor.native import NativeExecutor
from legato.scheduler.scheduler import Scheduler
from support.driving import Outcomes, drive, make_request
from support.oracles import assert_roomy_is_starved, assert_same, assert_solo_is_crowd
from support.tiny_engines import open_native, tiny_engine

BAD_WORDS = tuple((a, b) for a in range(80) for b in range(0, 80, 3))
TOKENS = [int(t) for t in np.random.RandomState(5).randint(0, 80, 50)]


class Tiny(NamedTuple):
    path: Path
    kv_cache_dtype: str


@pytest.fixture(
    scope="module",
    params=[("Q4_1", "bf16"), ("BF16", "bf16"), ("int8", "bf16"), ("int8", "int8"), ("BF16", "int8"), ("BF16", "fp8")],
    ids=str,
)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Long enough to have several attention splits; windows of 300 cross them."""
    path = tmp_path_factory.mktemp("engine") / "tiny.legato"
    dtype, kv_cache_dtype = request.param
    long = {"max_position_embeddings": 1024, "num_hidden_layers": 2, "sliding_window": 300}
    if dtype == "int8":
        tiny_engine(path, "qwen2", format="int8", max_position_embeddings=1024, num_hidden_layers=2)
    else:
        tiny_engine(path, "mistral", dtype=lambda name: dtype, **long)
    return Tiny(path, kv_cache_dtype)


def opened(engine: Tiny, **sizes: Any) -> NativeExecutor:
    sizes = {"num_blocks": 400, "max_seqs": 8, "threads": 2} | sizes
    return open_native(engine.path, kv_cache_dtype=engine.kv_cache_dtype, **sizes)


def pair(engine: Tiny, *, chunk: int = 512, rows: int = 64, **sizes: Any) -> tuple[Scheduler, NativeExecutor]:
    executor = opened(engine, max_rows=rows, **sizes)
    limits = {"max_num_batched_tokens": rows, "max_num_seqs": 8, "long_prefill_token_threshold": chunk}
    return Scheduler(executor.info(), SchedulerConfig(**limits), clock=lambda: 0.0), executor


def requests() -> list[Request]:
    """Short and long prompts, greedy and sampled, with penalties, log probabilities and several choices."""
    rng = np.random.RandomState(3)

    def prompt(length: int) -> list[int]:
        return [int(t) for t in rng.randint(0, 80, length)]

    penalties = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2}
    return [
        make_request("greedy", prompt(3), temperature=0.0, max_tokens=12, logprobs=3),
        make_request("long", prompt(530), temperature=0.8, seed=5, max_tokens=5, logprobs=0),
        make_request("sampled", prompt(20), temperature=1.2, top_p=0.9, top_k=30, seed=1 << 40, max_tokens=12),
        make_request("penalized", prompt(9), temperature=0.0, max_tokens=15, logprobs=1, **penalties),
        make_request("choices", prompt(40), temperature=1.0, min_p=0.02, n=2, seed=7, max_tokens=8),
        make_request("biased", prompt(7), seed=3, max_tokens=9, logit_bias={5: 2.0, 6: -100, 7: 1}, logprobs=2),
        make_request("allowed", prompt(6), seed=4, max_tokens=9, allowed_token_ids=(*range(9), 70, 79), logprobs=0),
        make_request("scored", prompt(70), temperature=0.0, max_tokens=5, prompt_logprobs=2, logprobs=1),
        make_request("prompt only", prompt(300), max_tokens=0, prompt_logprobs=0),
        make_request("watched", prompt(8), seed=6, max_tokens=9, logprobs=1, logprob_token_ids=(4, 79, 4)),
        replace(make_request("bad words", prompt(4), seed=8, max_tokens=20, logprobs=0), bad_words=BAD_WORDS),
        make_request("ends late", prompt(5), temperature=1.5, seed=9, max_tokens=9, min_tokens=6, ends=range(0, 80, 2)),
    ]


def test_p1_solo_is_crowd(engine: Tiny) -> None:
    shared = opened(engine)

    def make() -> tuple[Scheduler, NativeExecutor]:
        return Scheduler(shared.info(), SchedulerConfig(max_num_batched_tokens=64), clock=lambda: 0.0), shared

    outcomes = assert_solo_is_crowd(make, requests())
    assert outcomes["choices", 0].tokens != outcomes["choices", 1].tokens
    assert len(outcomes["ends late", 0].tokens) >= 6
    assert not any(token % 3 == 0 for token in outcomes["bad words", 0].tokens[1:])
    scores = outcomes["prompt only", 0].prompt_logprobs
    assert scores is not None
    assert (len(scores.logprobs), outcomes["prompt only", 0].tokens) == (299, [])
    assert 6 not in outcomes["biased", 0].tokens
    assert set(outcomes["allowed", 0].tokens) <= {*range(9), 70, 79}


@pytest.fixture(scope="module")
def expected(engine: Tiny) -> Outcomes:
    return drive(*pair(engine), requests())


@pytest.mark.parametrize(
    "change",
    [
        {"chunk": 16},
        {"chunk": 17, "rows": 24},
        {"rows": 600, "chunk": 600},
        {"threads": 1},
        {"threads": 3},
        {"block_size": 32},
        {"block_size": 64, "num_blocks": 100},
    ],
    ids=str,
)
def test_p1_chunks_threads_and_blocks_change_no_bit(engine: Tiny, expected: Outcomes, change: dict[str, int]) -> None:
    assert_same(expected, drive(*pair(engine, **change), requests()))


def test_p1_roomy_is_starved(engine: Tiny) -> None:
    penalties = {"repetition_penalty": 1.2, "frequency_penalty": 0.1}
    crowd = [
        make_request(str(i), TOKENS[i : i + 20 + i], temperature=0.9 * (i % 2), seed=i, max_tokens=70, **penalties)
        for i in range(4)
    ]
    assert_roomy_is_starved(lambda: pair(engine), lambda: pair(engine, num_blocks=16), crowd)


def test_p1_prefaulted_memory_changes_nothing(engine: Tiny, expected: Outcomes) -> None:
    assert_same(expected, drive(*pair(engine, prefault_kv=True), requests()))
