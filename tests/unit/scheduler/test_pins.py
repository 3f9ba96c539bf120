"""Cache hints: a pinned prefix outlives a flood, for its time and within its budget, and is in nobody's way."""

from dataclasses import replace

import pytest

from legato.core.types import Breakpoint, FinishReason
from support.driving import drive, make_request, scheduler_for
from support.invariants import check_invariants
from support.oracles import assert_drained, assert_same, run_solo
from support.scripted import ScriptedExecutor, full_group, window_group

SIZE = 4
FIVE_MINUTES = 300.0


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def pair(clock=lambda: 0.0, window=None, num_blocks=20, **config):
    groups = (full_group(),) if window is None else (full_group(), window_group(window))
    executor = ScriptedExecutor(block_size=SIZE, num_blocks=num_blocks, groups=groups)
    return scheduler_for(executor, clock=clock, **{"pin_budget": 0.5, **config}), executor


def prompt_of(length, start=0):
    return [(start + 7 * i) % 997 for i in range(length)]


def hinted(name, prompt, *points, salt="", **fields):
    """Points: lengths, or (length, seconds)."""
    pairs = [point if isinstance(point, tuple) else (point, FIVE_MINUTES) for point in points]
    request = make_request(name, prompt, **{"max_tokens": 1, **fields})
    return replace(request, cache_salt=salt, breakpoints=tuple(Breakpoint(*pair) for pair in pairs))


def ask(scheduler, executor, request):
    """(tokens found, tokens newly pinned)"""
    outcomes = drive(scheduler, executor, [request], after_step=lambda: check_invariants(scheduler))
    assert_drained(scheduler)
    return outcomes[request.request_id, 0].num_cached, outcomes[request.request_id, 0].num_pinned


def flood(scheduler, executor):
    """Prompts of half a pool each, four pools of them."""
    for i in range(8):
        ask(scheduler, executor, make_request(f"flood{i}", prompt_of(40, 100 + 50 * i), max_tokens=1))


def test_without_hints_a_flood_evicts_everything():
    scheduler, executor = pair()
    assert ask(scheduler, executor, hinted("r", prompt_of(30))) == (0, 0)
    flood(scheduler, executor)
    assert ask(scheduler, executor, hinted("r", prompt_of(30))) == (0, 0)


def test_a_pinned_prefix_survives_a_flood():
    scheduler, executor = pair()
    request = hinted("r", prompt_of(30), 22)
    assert ask(scheduler, executor, request) == (0, 20), "whole blocks only"
    flood(scheduler, executor)
    assert ask(scheduler, executor, request) == (20, 0)


def test_what_was_found_already_is_pinned_and_not_billed_as_written():
    scheduler, executor = pair()
    assert ask(scheduler, executor, hinted("a", prompt_of(30))) == (0, 0)
    assert ask(scheduler, executor, hinted("b", prompt_of(30), 16)) == (28, 0)
    flood(scheduler, executor)
    assert ask(scheduler, executor, hinted("c", [*prompt_of(16), 1, 2, 3, 4, 5, 6], 20)) == (16, 4)


def test_pins_expire_and_each_use_prolongs_them():
    clock = Clock()
    scheduler, executor = pair(clock)
    request = hinted("r", prompt_of(30), 20)
    ask(scheduler, executor, request)
    clock.now = FIVE_MINUTES - 1
    flood(scheduler, executor)
    assert ask(scheduler, executor, request) == (20, 0)
    clock.now += FIVE_MINUTES - 1
    flood(scheduler, executor)
    assert ask(scheduler, executor, request) == (20, 0), "its use prolonged it"
    clock.now += FIVE_MINUTES
    flood(scheduler, executor)
    assert ask(scheduler, executor, request)[0] == 0


def test_the_longer_of_two_times_holds():
    clock = Clock()
    scheduler, executor = pair(clock)
    ask(scheduler, executor, hinted("hour", prompt_of(30), (20, 3600.0)))
    ask(scheduler, executor, hinted("short", prompt_of(30), 20))
    clock.now = 3599
    flood(scheduler, executor)
    assert ask(scheduler, executor, make_request("r", prompt_of(30), max_tokens=1))[0] == 20


def test_what_does_not_fit_into_the_budget_is_not_pinned_and_ends_no_other_pin():
    """The budget is 10 blocks."""
    scheduler, executor = pair()
    first = hinted("first", prompt_of(25), 24, salt="a")
    assert ask(scheduler, executor, first) == (0, 24)
    assert ask(scheduler, executor, hinted("second", prompt_of(29), 8, 24, salt="b")) == (0, 8)
    flood(scheduler, executor)
    assert ask(scheduler, executor, first) == (24, 0)


def test_a_salt_sees_no_pin_of_another():
    scheduler, executor = pair()
    ask(scheduler, executor, hinted("r", prompt_of(30), 20, salt="a"))
    assert ask(scheduler, executor, hinted("r", prompt_of(30), salt="b")) == (0, 0)


def test_common_blocks_count_once():
    scheduler, executor = pair(num_blocks=40, pin_budget=0.3)
    assert ask(scheduler, executor, hinted("a", prompt_of(41), 40)) == (0, 40)
    assert ask(scheduler, executor, hinted("b", [*prompt_of(40), 900, 901, 902, 903, 904], 44)) == (40, 4)


NO_PINS = [{"pin_budget": 0.0}, {"enable_prefix_caching": False}, {"policy": "static"}]


@pytest.mark.parametrize("config", NO_PINS, ids=str)
def test_where_nothing_can_be_pinned_nothing_is_said_to_be(config):
    scheduler, executor = pair(**config)
    assert ask(scheduler, executor, hinted("r", prompt_of(30), 20))[1] == 0


def test_pins_yield_to_a_request_that_needs_the_whole_pool():
    scheduler, executor = pair(pin_budget=1.0)
    ask(scheduler, executor, hinted("pinned", prompt_of(77), 76))
    assert scheduler._ledger.blocks.pools[0].num_pinned == 19
    big = make_request("big", prompt_of(70, 500), max_tokens=8)
    outcomes = drive(scheduler, executor, [big], after_step=lambda: check_invariants(scheduler))
    assert outcomes["big", 0].finish is FinishReason.LENGTH
    assert_drained(scheduler)


def test_pins_do_not_yield_for_one_more_at_once():
    """Ten of 20 blocks are pinned: the second prompt of eight blocks waits, and finds the pool without preemption."""
    scheduler, executor = pair()
    pinned = hinted("pinned", prompt_of(41), 40)
    ask(scheduler, executor, pinned)
    crowd = [make_request(f"r{i}", prompt_of(28, 300 + 100 * i), seed=i, max_tokens=6) for i in range(2)]
    most = []
    outcomes = drive(scheduler, executor, crowd, after_step=lambda: most.append(scheduler.stats().running))
    assert max(most) == 1
    assert_same(run_solo(pair, crowd), outcomes)
    assert ask(scheduler, executor, pinned) == (40, 0)


def test_pins_yield_before_a_running_sequence_is_preempted():
    scheduler, executor = pair()
    ask(scheduler, executor, hinted("pinned", prompt_of(41), 40))
    outcomes = drive(scheduler, executor, [make_request("long", prompt_of(8, 300), max_tokens=60)])
    assert len(outcomes["long", 0].tokens) == 60
    assert scheduler.stats().preemptions == 0


def test_a_window_pins_only_what_a_row_behind_the_breakpoint_sees():
    scheduler, executor = pair(window=6)
    request = hinted("r", prompt_of(30), 20)
    assert ask(scheduler, executor, request) == (0, 20)
    assert [pool.num_pinned for pool in scheduler._ledger.blocks.pools] == [5, 2]
    flood(scheduler, executor)
    assert ask(scheduler, executor, request) == (20, 0)


def test_hints_change_no_token():
    plain = [make_request(f"r{i}", prompt_of(20 + i), seed=i, max_tokens=9) for i in range(12)]
    hints = [replace(request, breakpoints=(Breakpoint(16, FIVE_MINUTES),)) for request in plain]
    scheduler, executor = pair(num_blocks=12)
    assert_same(run_solo(pair, plain), drive(scheduler, executor, hints))
    assert_drained(scheduler)
