"""Every policy gives the same answers on the native executor, bit for bit; padding and freed windows included."""

from itertools import count
from pathlib import Path

import pytest

from legato.core.config import SchedulerConfig
from legato.executor.native import NativeExecutor
from legato.scheduler.scheduler import Scheduler
from support.driving import drive, make_request, scheduler_for
from support.oracles import assert_drained, assert_same
from support.tiny_engines import open_native, tiny_engine

POLICIES = [
    {"policy": "priority"},
    {"policy": "fair"},
    {"policy": "deadline"},
    {"policy": "static"},
    {"policy": "static", "static_padding": True},
    {"policy": "static", "static_padding": True, "long_prefill_token_threshold": 7},
    {"long_prefill_token_threshold": 5, "max_num_batched_tokens": 9},
]


@pytest.fixture(scope="module", params=["llama", "mistral"])
def executor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NativeExecutor:
    """Mistral with a window that is left behind, so that blocks are dropped and taken by others."""
    changes = {"sliding_window": 9} if request.param == "mistral" else {}
    path: Path = tmp_path_factory.mktemp("engine") / "tiny.legato"
    return open_native(tiny_engine(path, request.param, **changes))


@pytest.mark.parametrize("config", POLICIES, ids=str)
def test_policies_change_no_bit(executor: NativeExecutor, config: dict[str, object]) -> None:
    requests = [
        make_request(f"r{i}", range(i, i + 3 + 9 * i), seed=i, max_tokens=4 + 13 * (i % 3), logprobs=1, n=1 + i % 2)
        for i in range(6)
    ]
    expected = drive(scheduler_for(executor), executor, requests)
    scheduler = scheduler_for(executor, **{"max_num_seqs": 4, **config})
    assert_same(expected, drive(scheduler, executor, requests))
    assert_drained(scheduler)


def test_chunks_cut_by_time_change_no_bit(executor: NativeExecutor) -> None:
    """The clock says that every step takes a second, so that prompts beside decodes get the least that they can."""
    requests = [make_request(f"r{i}", range(i, i + 3 + 9 * i), seed=i, max_tokens=20, logprobs=1) for i in range(6)]
    expected = drive(scheduler_for(executor), executor, requests)
    steps = []
    for limit_ms in (100, 0):
        ticks = count()
        config = SchedulerConfig(max_num_batched_tokens=64, max_step_ms=limit_ms)
        scheduler = Scheduler(executor.info(), config, clock=lambda ticks=ticks: float(next(ticks)))
        assert_same(expected, drive(scheduler, executor, requests))
        assert_drained(scheduler)
        steps.append(scheduler.stats().steps)
    assert steps[0] > steps[1]
