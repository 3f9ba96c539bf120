"""P1, cold = warm: what the prefix cache gives changes no bit of tokens and log probabilities on the plan runner."""

from dataclasses import replace

import numpy as np
import pytest

from legato.core.config import SchedulerConfig
from legato.core.types import Request
from legato.executor.native import NativeExecutor
from legato.scheduler.scheduler import Scheduler
from support.driving import Outcomes, drive, make_request
from support.oracles import assert_cold_is_warm, assert_roomy_is_starved, assert_same, run_solo
from support.tiny_engines import open_native, tiny_engine

RNG = np.random.RandomState(11)
TOKENS = [int(t) for t in RNG.randint(0, 80, 1700)]
SIZE = 16
PENALTIES = {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.1}


@pytest.fixture(
    scope="module",
    params=[("Q4_1", "bf16"), ("BF16", "bf16"), ("int8", "bf16"), ("int8", "int8"), ("BF16", "fp8")],
    ids=str,
)
def executor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NativeExecutor:
    """Long enough for several attention splits; all but int8 with a window that prompts leave behind."""
    path = tmp_path_factory.mktemp("engine") / "tiny.legato"
    dtype, kv_cache_dtype = request.param
    long = {"max_position_embeddings": 2048, "num_hidden_layers": 2}
    if dtype == "int8":
        tiny_engine(path, "qwen2", format="int8", **long)
    else:
        tiny_engine(path, "mistral", dtype=lambda name: dtype, sliding_window=300, **long)
    return open_native(path, num_blocks=400, max_seqs=8, threads=2, max_rows=512, kv_cache_dtype=kv_cache_dtype)


def scheduler_over(executor: NativeExecutor, *, caching: bool = True, rows: int = 512) -> Scheduler:
    config = SchedulerConfig(max_num_batched_tokens=rows, max_num_seqs=8, enable_prefix_caching=caching)
    return Scheduler(executor.info(), config, clock=lambda: 0.0)


def cold(executor: NativeExecutor, requests: list[Request]) -> Outcomes:
    """Each alone, without a prefix cache."""
    return run_solo(lambda: (scheduler_over(executor, caching=False), executor), requests)


@pytest.mark.parametrize("blocks", [1, 10, 100])
def test_c15_cold_is_warm_at_block_boundaries(executor: NativeExecutor, blocks: int) -> None:
    requests = [
        make_request(f"{extra}", TOKENS[: blocks * SIZE + extra], max_tokens=5, logprobs=3, seed=extra + 1)
        for extra in (-1, 0, 1)
    ]
    scheduler = scheduler_over(executor)
    warm: Outcomes = {}
    for request in requests:  # one after the other, each twice
        drive(scheduler, executor, [request])
        warm |= drive(scheduler, executor, [request])
    assert_same(cold(executor, requests), warm)
    cached = [warm[f"{extra}", 0].num_cached for extra in (-1, 0, 1)]
    assert cached == [(blocks - 1) * SIZE, (blocks - 1) * SIZE, blocks * SIZE]


@pytest.mark.parametrize("length", [SIZE - 1, SIZE, SIZE + 1, 3 * SIZE])
def test_a15_prompt_logprobs_with_a_warm_cache(executor: NativeExecutor, length: int) -> None:
    """Complete and the same the second time; chunked or not; and what they leave in the cache serves others."""
    scored = make_request("scored", TOKENS[:length], max_tokens=3, prompt_logprobs=3, temperature=0.0)
    scheduler = scheduler_over(executor)
    first = drive(scheduler, executor, [scored])
    assert_same(first, drive(scheduler, executor, [scored]))
    assert_same(first, drive(scheduler_over(executor, rows=16), executor, [scored]))
    scores = first["scored", 0].prompt_logprobs
    assert scores is not None
    assert (len(scores.logprobs), len(scores.top_ids)) == (length - 1, 3 * (length - 1))
    plain = make_request("plain", TOKENS[:length], max_tokens=3, temperature=0.0)
    warm = drive(scheduler, executor, [plain])["plain", 0]
    assert warm.tokens == first["scored", 0].tokens
    assert warm.num_cached == (length - 1) // SIZE * SIZE
    assert first["scored", 0].num_cached == 0


def test_p1_a_crowd_that_shares_its_beginnings(executor: NativeExecutor) -> None:
    """Greedy and sampled, penalized, several choices; beginnings of many lengths, computed in small chunks."""
    requests = [
        make_request("greedy", TOKENS[:40], temperature=0.0, max_tokens=12, logprobs=3),
        make_request("longer", TOKENS[:350], temperature=0.8, seed=5, max_tokens=20, logprobs=0),
        make_request("penalized", TOKENS[:90], temperature=0.0, max_tokens=25, logprobs=1, **PENALTIES),
        make_request("choices", TOKENS[:64], temperature=1.0, min_p=0.02, n=3, seed=7, max_tokens=8),
        make_request("other end", [*TOKENS[:50], 1, 2, 3], temperature=1.2, top_p=0.9, seed=8, max_tokens=12),
        replace(make_request("salted", TOKENS[:64], seed=9, max_tokens=6), cache_salt="salt"),
    ]
    expected = cold(executor, requests)
    scheduler = scheduler_over(executor, rows=48)
    warm = assert_cold_is_warm(lambda: (scheduler, executor), requests)
    assert_same(expected, warm)
    assert {key[0]: outcome.num_cached for key, outcome in warm.items() if key[1] == 0} == {
        "greedy": 32, "longer": 336, "penalized": 80, "choices": 48, "other end": 48, "salted": 48,
    }  # fmt: skip


def test_p1_preempted_sequences_resume_from_what_survived(executor: NativeExecutor) -> None:
    crowd = [
        make_request(
            str(i),
            TOKENS[i : i + 40 + i],
            temperature=0.9 * (i % 2),
            seed=i,
            max_tokens=70,
            prompt_logprobs=1,
            **PENALTIES,
        )
        for i in range(4)
    ]

    def starved() -> tuple[Scheduler, NativeExecutor]:
        info = replace(executor.info(), num_blocks=22)
        return Scheduler(info, SchedulerConfig(max_num_batched_tokens=64), clock=lambda: 0.0), executor

    assert_roomy_is_starved(lambda: (scheduler_over(executor), executor), starved, crowd)
