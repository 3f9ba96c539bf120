"""`max_step_ms`: chunks are cut by predicted time, while answers grow."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.core.config import SchedulerConfig
from legato.scheduler.plan import LEAST_ROWS
from legato.scheduler.scheduler import Scheduler
from legato.scheduler.step_time import StepBudget, StepTimes
from support.driving import drive, make_request
from support.virtual_time import TimedExecutor, roofline

LIMIT_MS = 100.0
STREAMS = 32
LONG = 6000


def warm():
    """One that has seen its first step, which says nothing."""
    times = StepTimes()
    times.record(1, 1, 5000.0)
    return times


def pairs_of(start, rows):
    return rows * start + rows * (rows + 1) // 2


def test_prices_are_found_from_steps_of_different_sizes():
    times = warm()
    for _ in range(200):
        for start, rows in ((0, 512), (4000, 256), (4000, 16), (0, 8), (900, 1), (2000, 128)):
            pairs = pairs_of(start, rows)
            times.record(rows, pairs, 2 + 0.3 * rows + 0.0001 * pairs)
            times.prices()
    assert times.prices() == pytest.approx((0.3, 0.0001, 2), rel=0.02)


def test_nothing_measured_predicts_nothing():
    times = warm()
    times.record(5, 15, 0.0)
    assert times.predict(512, 10_000) == 0
    assert StepBudget(times, LIMIT_MS, 1, 10, 16).rows(0) > 1_000_000


def test_one_measured_size_is_put_down_to_its_rows():
    times = warm()
    times.record(100, pairs_of(0, 100), 50.0)
    assert times.predict(200, pairs_of(0, 200)) == pytest.approx(100.0)


def test_a_stall_is_forgotten_and_a_slower_machine_is_followed():
    times = warm()
    for _ in range(50):
        times.record(100, 5050, 40.0)
    times.record(100, 5050, 60_000.0)
    assert times.predict(100, 5050) < 46
    for _ in range(20):
        times.record(100, 5050, 80.0)
    assert times.predict(100, 5050) == pytest.approx(80.0, rel=0.1)


def test_a_stall_in_a_step_of_a_new_size_does_not_price_all_others():
    times = warm()
    for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        for _ in range(8):
            times.record(rows, pairs_of(500, rows), 5 + 0.3 * rows)
            times.prices()
    times.record(512, pairs_of(500, 512), 60_000.0)
    assert times.predict(256, pairs_of(500, 256)) < 3 * 82


@given(
    prices=st.tuples(st.floats(0, 1), st.floats(0, 1e-3), st.floats(0.01, 10)),
    start=st.integers(0, 100_000),
    limit=st.floats(0.1, 1000),
)
def test_as_many_rows_as_there_is_time_for(prices, start, limit):
    times = StepTimes()
    times._prices = list(prices)
    limit_ms = limit * 0.95  # what is aimed at
    budget = StepBudget(times, limit, 0, 0, 0)
    rows = budget.rows(start)
    row, pair, step = prices
    if row == pair == 0:
        assert rows == 0 or rows > 1_000_000
        return
    assert step + row * rows + pair * pairs_of(start, rows) <= limit_ms * 1.000001 or rows == 0
    if rows < 1_000_000_000:  # more are never asked for
        assert step + row * (rows + 1) + pair * pairs_of(start, rows + 1) > limit_ms * 0.999999


def serve_a_long_prompt(cost, **config):
    """32 streams that were served for a while, then a prompt of 6,000 tokens. Returns (executor, steps before it)."""
    executor = TimedExecutor(cost, num_blocks=1200, max_position=8192, max_seqs=64)
    settings = {"max_step_ms": LIMIT_MS, "max_num_seqs": 64, **config}
    scheduler = Scheduler(executor.info(), SchedulerConfig(**settings), clock=executor.clock)
    streams = [make_request(f"s{i}", [i] * (40 + 7 * i), seed=i, max_tokens=400) for i in range(STREAMS)]
    drive(scheduler, executor, streams[:2])
    before = []

    def arrive(scheduler):
        before.append(len(executor.steps))
        scheduler.add(make_request("long", [99] * LONG, max_tokens=1))

    events = {}
    for i, request in enumerate(streams):
        events.setdefault(2 * i, []).append(lambda s, r=request: s.add(r))
    drive(scheduler, executor, (), {**events, 120: [arrive]})
    return executor, before[0]


def during_the_long_prompt(executor, before):
    """Its steps, from its arrival to the last one in which it has a chunk."""
    behind = [i for i, step in enumerate(executor.steps) if i >= before and step.longest > 1]
    return executor.steps[before : behind[-1] + 1]


@pytest.mark.parametrize("seed", range(8))
def test_a_long_prompt_among_streams_keeps_the_bound(seed):
    """Machines of all kinds, whose steps vary by 5 %; their decode steps alone take up to 60 ms."""
    rng = random.Random(seed)
    pair_ms = rng.choice([0, rng.uniform(0, 1e-4)])
    exact = roofline(rng.uniform(1, 30), rng.uniform(0.3, 0.9), pair_ms, rng.uniform(0, 0.5))

    def cost(rows, pairs, outputs):
        return exact(rows, pairs, outputs) * (1 + rng.uniform(-0.05, 0.05))

    executor, before = serve_a_long_prompt(cost)
    steps = during_the_long_prompt(executor, before)
    assert sum(step.longest for step in steps) >= LONG
    assert max(step.ms for step in steps if step.outputs) <= 1.2 * LIMIT_MS
    cut = [step.ms for step in steps[:-1] if step.longest < 256]
    assert sum(cut) / len(cut) >= 0.75 * LIMIT_MS, "and uses the time that it leaves"


def test_the_same_measured_times_give_the_same_plans():
    cost = roofline(10, 0.3, 5e-5)
    assert serve_a_long_prompt(cost)[0].steps == serve_a_long_prompt(cost)[0].steps


def test_no_bound_where_it_is_off_or_nothing_decodes():
    cost = roofline(10, 1.0, 0)
    executor, before = serve_a_long_prompt(cost, max_step_ms=0)
    assert max(step.ms for step in during_the_long_prompt(executor, before)) > 2 * LIMIT_MS
    executor = TimedExecutor(cost, num_blocks=1200, max_position=8192)
    scheduler = Scheduler(executor.info(), SchedulerConfig(max_step_ms=LIMIT_MS), clock=executor.clock)
    drive(scheduler, executor, [make_request("long", [99] * LONG, max_tokens=1)])
    assert {step.longest for step in executor.steps[:-1]} == {256}


@pytest.mark.parametrize("chunk_align", [1, 12, 64])
def test_a_prompt_gets_on_where_decodes_take_all_the_time(chunk_align):
    """C13: beside decodes that take longer than the bound, the first in line still computes LEAST_ROWS per step."""
    executor = TimedExecutor(roofline(300, 1.0, 0), chunk_align=chunk_align)
    scheduler = Scheduler(executor.info(), SchedulerConfig(max_step_ms=LIMIT_MS), clock=executor.clock)
    streams = [make_request(f"s{i}", [i] * 9, max_tokens=300) for i in range(4)]
    prompts = [make_request(f"long{i}", [99 + i] * 960, max_tokens=1) for i in range(2)]
    drive(scheduler, executor, streams, {5: [lambda s: [s.add(prompt) for prompt in prompts]]})
    chunks = [step.longest for step in executor.steps[5:] if step.longest > 1]
    least = max(LEAST_ROWS - LEAST_ROWS % chunk_align, chunk_align)
    assert set(chunks) <= {least, 960 % least, 960 - 14 * 64 - 32}
    assert len(chunks) == 2 * -(-960 // least)
    assert all(len(step.rows) <= 5 for step in executor.steps[5:]), "the second waits for the first"


def test_the_padded_baseline_has_no_bound():
    cost = roofline(10, 1.0, 0)
    executor, before = serve_a_long_prompt(cost, policy="static")
    assert max(step.longest for step in executor.steps[before:]) == 256
