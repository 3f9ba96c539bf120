"""The classic way to run out of memory: many long prompts at once on a small pool. Nothing is lost or leaks (P3)."""

import pytest

from legato.core.errors import QueueFullError
from legato.core.types import FinishReason
from support.driving import drive, make_request, scheduler_for
from support.invariants import check_invariants
from support.oracles import assert_drained, assert_same, run_solo
from support.scripted import ScriptedExecutor

PROMPT = 2000
POOL = 150  # blocks of 16: one prompt and a fifth of another


def pair(**config):
    executor = ScriptedExecutor(num_blocks=POOL, max_position=4096)
    return scheduler_for(executor, **config), executor


def burst(count, *, shared=0):
    prompts = [
        [*(p % 991 for p in range(shared)), *((i * 31 + p) % 997 for p in range(PROMPT - shared))] for i in range(count)
    ]
    return [make_request(f"r{i}", prompt, seed=i, max_tokens=20) for i, prompt in enumerate(prompts)]


@pytest.mark.parametrize("shared", [0, 1750], ids=["nothing in common", "a common beginning"])
def test_a_burst_of_64_long_prompts_finishes(shared):
    scheduler, executor = pair()
    requests = burst(64, shared=shared)
    outcomes = drive(scheduler, executor, requests, after_step=lambda: check_invariants(scheduler))
    assert [outcome.finish for outcome in outcomes.values()] == [FinishReason.LENGTH] * 64
    assert_drained(scheduler)
    assert_same(run_solo(pair, requests[:4]), {key: outcomes[key] for key in [(f"r{i}", 0) for i in range(4)]})


def test_a_burst_beyond_the_queue_is_refused_and_the_rest_finishes():
    scheduler, executor = pair(max_num_queued_reqs=10, max_num_seqs=4)
    taken = []
    for request in burst(64):
        try:
            scheduler.add(request)
        except QueueFullError:
            continue
        taken.append(request.request_id)
    assert len(taken) == 14, "four places, and ten who wait"
    outcomes = drive(scheduler, executor)
    assert {name for name, _ in outcomes} == set(taken)
    assert all(outcome.finish is FinishReason.LENGTH for outcome in outcomes.values())
    assert_drained(scheduler)
