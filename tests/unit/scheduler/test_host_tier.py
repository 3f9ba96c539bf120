"""The host tier: evicted blocks come back, to the same tokens; what cannot be stored or read is computed."""

import itertools
import random
from array import array
from dataclasses import replace

import pytest

from legato.cache.host_tier import label_of
from legato.core.config import SchedulerConfig
from legato.core.errors import ConfigError
from legato.core.types import DEVICE_TIER, HOST_TIER, Breakpoint, FinishReason
from legato.scheduler.scheduler import Scheduler
from support.driving import drive, make_request, scheduler_for
from support.invariants import check_invariants
from support.oracles import assert_drained, assert_same, run_solo
from support.scripted import ScriptedExecutor, full_group, window_group

SIZE = 4


def pair(num_blocks=20, host_slots=100, window=None, config=None, **executor):
    groups = (full_group(),) if window is None else (full_group(), window_group(window))
    made = ScriptedExecutor(block_size=SIZE, num_blocks=num_blocks, groups=groups, host_slots=host_slots, **executor)
    return scheduler_for(made, **(config or {})), made


def prompt_of(length, start=0):
    return [(start + 7 * i) % 997 for i in range(length)]


def request_of(start, length=42, **fields):
    return make_request(f"r{start}", prompt_of(length, start), **{"max_tokens": 3, **fields})


def ask(scheduler, executor, request):
    """(prompt tokens found, those of them that came from the host tier); the answer is that of a cold run."""
    before = scheduler.stats().prefix_hits_host
    outcomes = drive(scheduler, executor, [request], after_step=lambda: check_invariants(scheduler))
    assert_same(run_solo(lambda: pair(num_blocks=400), [request]), outcomes)
    assert_drained(scheduler)
    return outcomes[request.request_id, 0].num_cached, scheduler.stats().prefix_hits_host - before


def flood(scheduler, executor):
    """Four pools of other prompts."""
    for i in range(8):
        ask(scheduler, executor, request_of(100 + 50 * i))


def copies(executor, tier):
    return [copy for plan in executor.plans for copy in plan.copies if copy.target_tier == tier]


def test_evicted_blocks_come_back():
    scheduler, executor = pair()
    assert ask(scheduler, executor, request_of(1)) == (0, 0)
    assert not copies(executor, HOST_TIER), "nothing was evicted yet"
    flood(scheduler, executor)
    assert ask(scheduler, executor, request_of(1)) == (40, 40)
    assert len(executor.plans[-3].tokens) == 2, "only what no whole block holds is computed"
    assert ask(scheduler, executor, request_of(1)) == (40, 0), "now they are on the device again"
    assert scheduler.stats().blocks_host > 0


def test_a_block_that_lies_there_is_not_stored_again():
    scheduler, executor = pair()
    for _ in range(3):
        ask(scheduler, executor, request_of(1))
        flood(scheduler, executor)
    labels = [copy.label for copy in copies(executor, HOST_TIER)]
    assert len(set(labels)) == len(labels)


def test_what_is_on_the_device_is_not_restored():
    scheduler, executor = pair()
    ask(scheduler, executor, request_of(1))
    ask(scheduler, executor, request_of(2, length=50))  # takes some of the 20 blocks, from the end of the first
    found, restored = ask(scheduler, executor, request_of(1))
    assert found == 40
    assert 0 < restored < 40


def test_the_least_recently_used_slot_is_overwritten():
    scheduler, executor = pair(host_slots=12)
    ask(scheduler, executor, request_of(1))
    flood(scheduler, executor)
    assert ask(scheduler, executor, request_of(1)) == (0, 0)
    assert scheduler.stats().blocks_host == 12


def test_salts_share_nothing_there_either():
    scheduler, executor = pair()
    ask(scheduler, executor, replace(request_of(1), cache_salt="a"))
    flood(scheduler, executor)
    assert ask(scheduler, executor, replace(request_of(1), cache_salt="b")) == (0, 0)
    assert ask(scheduler, executor, replace(request_of(1), cache_salt="a")) == (40, 40)


def test_a_window_restores_what_is_seen():
    scheduler, executor = pair(window=6)
    ask(scheduler, executor, request_of(1))
    flood(scheduler, executor)
    done = len(copies(executor, DEVICE_TIER))
    assert ask(scheduler, executor, request_of(1)) == (40, 40)
    groups = [copy.group for copy in copies(executor, DEVICE_TIER)[done:]]
    assert (groups.count(0), groups.count(1)) == (10, 2)


def test_pinned_blocks_make_no_room_for_restored_ones():
    scheduler, executor = pair(config={"pin_budget": 0.75})
    ask(scheduler, executor, request_of(1))
    flood(scheduler, executor)
    ask(scheduler, executor, replace(request_of(2, length=50), breakpoints=(Breakpoint(48, 300.0),)))
    assert scheduler._ledger.blocks.pools[0].num_pinned == 12
    found, restored = ask(scheduler, executor, request_of(1))
    assert (found, restored) in [(0, 0), (40, 40)]
    assert scheduler._ledger.blocks.pools[0].num_pinned >= 8


def test_a_restart_finds_what_was_stored():
    scheduler, executor = pair()
    ask(scheduler, executor, request_of(1))
    flood(scheduler, executor)
    found = tuple((group, slot, label) for (group, slot), (label, _) in executor.host.items())
    _, restarted = pair()
    restarted.host, restarted._nothing = executor.host, executor._nothing
    again = Scheduler(replace(restarted.info(), host_blocks=found), SchedulerConfig(), clock=lambda: 0.0)
    assert ask(again, restarted, request_of(1)) == (40, 40)
    flood(again, restarted)


def test_a_block_that_cannot_be_read_is_computed_again():
    trouble = []
    scheduler, executor = pair(lose=lambda copy: copy.target_tier == DEVICE_TIER and copy.label in trouble)
    ask(scheduler, executor, request_of(1))
    flood(scheduler, executor)
    fifth = label_at(scheduler, 5)
    trouble.append(fifth)
    assert ask(scheduler, executor, request_of(1))[0] == 16, "what stands before it was right"
    trouble.clear()
    assert ask(scheduler, executor, request_of(1)) == (40, 0)


def label_at(scheduler, length):
    prefixes = scheduler._ledger._prefixes
    chain = prefixes.chain(-1, "")
    tokens = request_of(1).prompt
    return label_of(prefixes._prefix(chain, array("i", tokens), length))


def test_all_that_share_a_lost_block_compute_it_again():
    lost = []
    scheduler, executor = pair(num_blocks=40, lose=lambda copy: copy.target_tier == DEVICE_TIER and not lost)
    ask(scheduler, executor, request_of(1))
    for i in range(12):
        ask(scheduler, executor, request_of(100 + 50 * i))
    crowd = [make_request(f"c{i}", [*prompt_of(40, 1), 900 + i], seed=i, max_tokens=4) for i in range(3)]
    outcomes = drive(scheduler, executor, crowd, after_step=lambda: (check_invariants(scheduler), lost.append(1)))
    assert_same(run_solo(lambda: pair(num_blocks=400), crowd), outcomes)
    assert scheduler.stats().preemptions == 3
    assert_drained(scheduler)


def test_a_full_disk_ends_storing_and_what_lies_there_still_comes_back():
    full = []
    scheduler, executor = pair(lose=lambda copy: copy.target_tier == HOST_TIER and bool(full))
    ask(scheduler, executor, request_of(1))
    flood(scheduler, executor)
    full.append(True)
    before = scheduler.stats().blocks_host
    ask(scheduler, executor, request_of(600, length=70))
    done = len(copies(executor, HOST_TIER))
    assert scheduler.stats().host_copies_lost > 0
    assert scheduler.stats().blocks_host == before, "what could not be stored does not count"
    for _ in range(2):
        assert ask(scheduler, executor, request_of(1)) == (40, 40)
        flood(scheduler, executor)
    assert len(copies(executor, HOST_TIER)) == done, "nothing is tried again"


def test_a_request_that_has_to_wait_does_not_restore_in_every_step():
    scheduler, executor = pair()
    ask(scheduler, executor, request_of(1))
    flood(scheduler, executor)
    busy = make_request("busy", prompt_of(36, 600), max_tokens=8)
    big = make_request("big", prompt_of(42, 1), max_tokens=3)
    done = len(copies(executor, DEVICE_TIER))
    outcomes = drive(scheduler, executor, [busy, big], after_step=lambda: check_invariants(scheduler))
    assert [outcome.finish for outcome in outcomes.values()] == [FinishReason.LENGTH] * 2
    assert scheduler.stats().steps > 10
    assert 10 <= len(copies(executor, DEVICE_TIER)) - done <= 12, "ten, and what the busy one took meanwhile"
    assert_drained(scheduler)


def test_what_is_being_restored_is_not_overwritten_meanwhile():
    """Twelve slots, all full: what ten restored blocks evict may go to two of them."""
    scheduler, executor = pair(host_slots=12)
    for turn in range(20):
        ask(scheduler, executor, request_of(turn % 2))
    assert copies(executor, DEVICE_TIER)


@pytest.mark.parametrize("config", [{"enable_prefix_caching": False}, {"policy": "static"}], ids=str)
def test_without_a_prefix_cache_it_is_refused(config):
    with pytest.raises(ConfigError, match="kv_offloading_size: without a prefix cache"):
        pair(config=config)
    with pytest.raises(ConfigError, match="several plans in flight"):
        pair(plans_in_flight=2)


def test_c10_two_thousand_requests_with_pins_spills_and_losses_leave_nothing_behind():
    """C10, C11: prompts that come again, hints, aborts; one copy in ten fails, but storing always succeeds."""
    rng, clock = random.Random(7), itertools.count()
    made = ScriptedExecutor(
        block_size=SIZE,
        num_blocks=30,
        host_slots=60,
        vocab_size=97,
        lose=lambda copy: copy.target_tier == DEVICE_TIER and rng.random() < 0.1,
    )
    scheduler = scheduler_for(made, clock=lambda: float(next(clock)), max_num_seqs=6, max_num_batched_tokens=32)
    requests, events = [], {}
    for i in range(2000):
        start = rng.choice([0, 1, 2, 3, 4, 5, i])
        prompt = [(start * 11 + p * 3) % 97 for p in range(rng.choice([3, 4, 5, 16, 17, 32, 41]))]
        points = (Breakpoint(rng.randint(1, len(prompt)), rng.choice([50.0, 500.0])),) if i % 5 == 0 else ()
        request = make_request(f"r{i}", prompt, seed=i, max_tokens=rng.choice([1, 2, 3, 5]))
        requests.append(replace(request, breakpoints=points, cache_salt=rng.choice(["", "a"])))
        events.setdefault(i // 3, []).append(lambda s, i=i: s.add(requests[i]))
        if i % 10 == 0:
            events.setdefault(i // 3 + rng.randrange(4), []).append(lambda s, i=i: s.abort(f"r{i}"))
    steps = itertools.count()
    outcomes = drive(scheduler, made, (), events, after_step=lambda: next(steps) % 4 or check_invariants(scheduler))
    assert_drained(scheduler)
    assert len(outcomes) == 2000
    assert len(copies(made, DEVICE_TIER)) > 300
    sample = [request for request in requests[1::100] if outcomes[request.request_id, 0].finish is FinishReason.LENGTH]
    alone = run_solo(lambda: pair(num_blocks=400, vocab_size=97), sample)
    assert_same(alone, {key: outcomes[key] for key in alone})


def test_steps_that_restore_are_no_measure_of_others(monkeypatch):
    scheduler, executor = pair(config={"max_step_ms": 100.0})
    measured = []
    monkeypatch.setattr(scheduler._ledger.step_times, "record", lambda rows, pairs, ms: measured.append(rows))
    ask(scheduler, executor, request_of(1))
    flood(scheduler, executor)
    ask(scheduler, executor, request_of(1))
    restoring = [plan for plan in executor.plans if any(copy.source_tier == HOST_TIER for copy in plan.copies)]
    assert restoring
    assert len(measured) == len(executor.plans) - len(restoring)
