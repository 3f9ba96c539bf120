"""The prefix cache: what is found, that it is right, and that nothing else changes."""

from collections import Counter
from dataclasses import replace
from hashlib import sha256

import pytest

from legato.cache.prefix_cache import PrefixCache
from legato.core.types import CacheGroup, FinishReason
from support.driving import drive, make_request, record, scheduler_for
from support.invariants import check_invariants
from support.oracles import assert_cold_is_warm, assert_drained, assert_same, run_solo
from support.scripted import ScriptedExecutor, full_group, window_group

SIZE = 4


def pair(config=(), **executor):
    made = ScriptedExecutor(**{"block_size": SIZE, "num_blocks": 1200, "max_position": 5000, **executor})
    return scheduler_for(made, **dict(config)), made


def prompt_of(length, start=0):
    return [(start + 7 * i) % 997 for i in range(length)]


def depth(prefix):
    return 0 if prefix is None else 1 + depth(prefix.parent)


def cached(outcomes):
    return [outcome.num_cached for outcome in outcomes.values()]


@pytest.mark.parametrize("blocks", [1, 10, 100, 1000])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_c15_cold_is_warm_at_block_boundaries(blocks, extra):
    """A prompt that is cached as a whole still computes its last token, and gives its first."""
    length = blocks * SIZE + extra
    scheduler, executor = pair()
    request = make_request("r", prompt_of(length), max_tokens=6, logprobs=2)
    cold = drive(scheduler, executor, [request])
    steps = len(executor.plans)
    warm = drive(scheduler, executor, [request])
    assert_same(cold, warm)
    assert (cached(cold), cached(warm)) == ([0], [(length - 1) // SIZE * SIZE])
    assert len(warm["r", 0].tokens) == 6
    assert len(executor.plans[steps].tokens) == length - (length - 1) // SIZE * SIZE <= SIZE
    assert_drained(scheduler)


def test_prefixes_are_shared_up_to_where_they_part():
    scheduler, executor = pair()
    common = prompt_of(22)
    requests = [make_request(f"r{i}", [*common, 900 + i, 901 + i], max_tokens=3) for i in range(3)]
    expected = run_solo(pair, requests)
    outcomes = {}
    for request in requests:
        outcomes |= drive(scheduler, executor, [request])
    assert_same(expected, outcomes)
    assert cached(outcomes) == [0, 20, 20]
    assert (scheduler.stats().prefix_queries, scheduler.stats().prefix_hits) == (72, 40)


def test_an_answer_is_a_prefix_too():
    scheduler, executor = pair()
    first = drive(scheduler, executor, [make_request("r", prompt_of(6), max_tokens=8)])["r", 0]
    talk = [*prompt_of(6), *first.tokens, 1, 2]
    # All 14 tokens but the last, which was never computed: 3 blocks of 4.
    assert cached(drive(scheduler, executor, [make_request("next", talk, max_tokens=2)])) == [12]


def test_a_running_sequence_shares_its_blocks():
    scheduler, executor = pair()
    request = make_request("a", prompt_of(20), max_tokens=20)
    events = {3: [lambda s: s.add(replace(request, request_id="b"))]}
    outcomes = drive(scheduler, executor, [request], events, after_step=lambda: check_invariants(scheduler))
    assert cached(outcomes) == [0, 16]
    assert outcomes["a", 0] == outcomes["b", 0]


@pytest.mark.parametrize("max_num_seqs", [1, 3])
@pytest.mark.parametrize("length", [20, 200])
def test_choices_share_a_prompt_that_is_computed(max_num_seqs, length):
    """Also those that are admitted together: they wait for the blocks of the first."""
    scheduler, executor = pair({"max_num_seqs": max_num_seqs, "long_prefill_token_threshold": 64})
    drive(scheduler, executor, [make_request("r", prompt_of(length), n=3, max_tokens=4)])
    computed = Counter(position for plan in executor.plans for position in plan.positions)
    whole = (length - 1) // scheduler._ledger.blocks.block_size * scheduler._ledger.blocks.block_size
    assert {computed[position] for position in range(whole)} == {1}
    assert {computed[position] for position in range(whole, length + 3)} == {3}
    assert scheduler.stats().prefix_hits == 2 * whole


def test_one_whose_leader_is_aborted_computes_its_prompt_itself():
    scheduler, executor = pair({"long_prefill_token_threshold": 64})
    requests = [make_request(f"r{i}", prompt_of(200), max_tokens=4) for i in range(3)]
    outcomes = drive(scheduler, executor, requests, {1: [lambda s: s.abort("r0")], 2: [lambda s: s.abort("r1")]})
    assert outcomes["r2", 0].finish is FinishReason.LENGTH
    assert len(outcomes["r2", 0].tokens) == 4
    assert_drained(scheduler)


def test_c05_c09_only_equal_salts_and_adapters_share():
    scheduler, executor = pair()
    base = make_request("r", prompt_of(30), max_tokens=3)
    others = [("x", -1), ("y", -1), ("", 0), ("", 1), ("x", 0)]
    expected = drive(scheduler, executor, [base])
    for salt, adapter in others:
        request = replace(base, cache_salt=salt, adapter=adapter)
        for hit in (0, 28):
            outcomes = drive(scheduler, executor, [request])
            assert cached(outcomes) == [hit]
            assert_same(expected, outcomes)
    assert cached(drive(scheduler, executor, [base])) == [28]


def test_c08_five_hundred_prompts_under_a_hash_of_four_bits():
    """Prompts of few different tokens, so that blocks under other parents are equal too; the pool is small."""

    def four_bits(data):
        return bytes([sha256(data).digest()[0] & 15])

    scheduler, executor = pair(num_blocks=40)
    scheduler._ledger._prefixes = PrefixCache(
        scheduler._ledger.blocks, 1, scheduler._ledger._prefixes.pins, digest=four_bits
    )
    requests = [make_request(f"r{i}", [i % 3] * 4 + [i % 2] * 4 + [i % 5] * 4 + [i], max_tokens=3) for i in range(500)]
    outcomes = drive(scheduler, executor, requests, after_step=lambda: check_invariants(scheduler))
    assert_same(run_solo(lambda: pair(num_blocks=40), requests), outcomes)
    assert sum(cached(outcomes)) > 0, "nothing was shared at all"


def test_c08_the_polynomial_pair_shares_nothing():
    scheduler, executor = pair()
    requests = [make_request("a", [9, 50, 8, 8, 1], max_tokens=2), make_request("b", [10, 19, 8, 8, 1], max_tokens=2)]
    outcomes = {}
    for request in requests:
        outcomes |= drive(scheduler, executor, [request])
    assert cached(outcomes) == [0, 0]
    assert_same(run_solo(pair, requests), outcomes)


def test_a_resumed_sequence_finds_what_survived():
    scheduler, executor = pair(num_blocks=12)
    requests = [make_request(f"r{i}", prompt_of(16, 100 * i), seed=i, max_tokens=16) for i in range(2)]
    outcomes = drive(scheduler, executor, requests, after_step=lambda: check_invariants(scheduler))
    assert_same(run_solo(pair, requests), outcomes)
    assert scheduler.stats().preemptions
    resumed = [plan.positions[0] for plan in executor.plans if plan.resets and plan.resets[0].seed == 1]
    assert resumed[-1] > 0
    assert cached(outcomes) == [0, 0], "what a sequence computed itself is no cached prompt"
    assert scheduler.stats().prefix_queries == 32


def test_the_least_recently_used_goes_first():
    scheduler, executor = pair(num_blocks=12)

    def ask(start):
        return cached(drive(scheduler, executor, [make_request("r", prompt_of(17, start), max_tokens=1)]))[0]

    assert [ask(start) for start in (1, 2, 1)] == [0, 0, 16]  # 1 and 2 stay: 8 cached blocks
    assert ask(3) == 0  # takes the 4 that are blank, and one more at the end of 2
    assert [ask(start) for start in (1, 3)] == [16, 16]
    assert ask(2) == 12


def test_cached_blocks_count_as_free():
    scheduler, executor = pair(num_blocks=12)
    drive(scheduler, executor, [make_request("r", prompt_of(40), max_tokens=1)])
    stats = scheduler.stats()
    assert (stats.blocks_used, stats.blocks_cached, stats.kv_usage) == (0, 10, 0.0)
    assert_drained(scheduler)
    other = drive(scheduler, executor, [make_request("r", prompt_of(46, 3), max_tokens=1)])
    assert other["r", 0].finish is FinishReason.LENGTH


def test_opting_out_reads_nothing_and_still_serves_others():
    scheduler, executor = pair()
    request = make_request("r", prompt_of(20), max_tokens=2)
    alone = make_request("r", prompt_of(20), max_tokens=2, skip_reading_prefix_cache=True)
    assert [cached(drive(scheduler, executor, [r]))[0] for r in (alone, alone, request)] == [0, 0, 16]
    assert [plan.num_rows for plan in executor.plans if plan.resets] == [20, 20, 4]
    assert scheduler.stats().prefix_queries == 20


@pytest.mark.parametrize("config", [{"enable_prefix_caching": False}, {"policy": "static"}], ids=str)
def test_without_a_prefix_cache_all_is_computed(config):
    scheduler, executor = pair(config)
    requests = [make_request("r", prompt_of(20), max_tokens=2)]
    assert cached(assert_cold_is_warm(lambda: (scheduler, executor), requests)) == [0]
    stats = scheduler.stats()
    assert (stats.blocks_cached, stats.prefix_queries, stats.prefix_hits) == (0, 0, 0)


def test_groups_whose_blocks_are_not_all_of_the_state_share_nothing():
    state = CacheGroup("state", "state", None, num_layers=1, bytes_per_block=0)
    scheduler, executor = pair(groups=(full_group(), state))
    for _ in range(2):
        assert cached(drive(scheduler, executor, [make_request("r", prompt_of(20), max_tokens=2)])) == [0]


@pytest.mark.parametrize("windows", [(3,), (9,), (None, 6), (5, None, 2), (20,)], ids=str)
@pytest.mark.parametrize("length", [19, 20, 21, 40])
def test_a_hit_holds_in_every_group(windows, length):
    groups = tuple(full_group() if window is None else window_group(window) for window in windows)
    scheduler, executor = pair(groups=groups)
    requests = [make_request("r", prompt_of(length), max_tokens=9)]
    warm = assert_cold_is_warm(lambda: (scheduler, executor), requests)
    assert cached(warm) == [(length - 1) // SIZE * SIZE]
    # Blocks of a window that the next rows do not see are not needed, and not taken.
    scheduler.add(requests[0])
    plan = scheduler.plan()
    for group, window in enumerate(windows):
        taken = sum(block >= 0 for block in plan.block_tables[group].blocks)
        assert taken <= (-(-length // SIZE) if window is None else (window + SIZE - 2) // SIZE + 2)


@pytest.mark.parametrize(("lost", "hit"), [(slice(7, 10), 28), (slice(0, 7), 36)], ids=["seen", "behind the window"])
def test_a_group_that_lost_what_is_seen_shortens_the_hit(lost, hit):
    scheduler, executor = pair(groups=(full_group(), window_group(6)))
    request = make_request("r", prompt_of(40), max_tokens=1)
    expected = drive(scheduler, executor, [request])
    pool = scheduler._ledger.blocks.pools[1]
    for prefix in sorted(pool._holder, key=depth)[lost]:  # of the 10 blocks of the prompt
        block = pool._holder.pop(prefix)
        pool._held[block] = None
        del pool._cached[block]
        pool._blank.append(block)
    outcomes = drive(scheduler, executor, [request], after_step=lambda: check_invariants(scheduler))
    assert_same(expected, outcomes)
    assert cached(outcomes) == [hit]


def test_faulty_rows_are_never_found():
    bad = 500
    scheduler, executor = pair(faulty=lambda history: bad in history)
    good_part = prompt_of(16)
    poisoned = make_request("bad", [*good_part, bad, *prompt_of(20)], max_tokens=3)
    for _ in range(2):
        outcomes = drive(scheduler, executor, [poisoned])
        assert outcomes["bad", 0].finish is FinishReason.ERROR
        assert scheduler.stats().blocks_cached == 0, "blocks of a faulty step were kept"
    executor.faulty = None
    assert drive(scheduler, executor, [poisoned])["bad", 0].num_cached == 0


def test_a_step_that_never_came_back_is_not_found():
    """Blocks are known when their step is committed, not when it is planned."""
    scheduler, executor = pair(plans_in_flight=2)
    request = make_request("a", prompt_of(20), max_tokens=1)
    scheduler.add(request)
    plan = scheduler.plan()
    executor.launch(plan)
    scheduler.add(replace(request, request_id="b"))
    second = scheduler.plan()
    executor.launch(second)
    assert second.positions[0] == 0
    outcomes = {}
    for each in (plan, second):
        record(outcomes, scheduler.commit(each, executor.collect(each.step_id)))
        check_invariants(scheduler)
    assert outcomes["a", 0] == outcomes["b", 0]
    assert_drained(scheduler)
    assert scheduler.stats().blocks_cached == 5, "the second copy is blank"


def test_the_head_of_the_queue_waits_without_blocks():
    scheduler, executor = pair(num_blocks=10)
    drive(scheduler, executor, [make_request("r", prompt_of(16), max_tokens=1)])
    scheduler.add(make_request("busy", prompt_of(20, 5), max_tokens=12))
    executor.launch(plan := scheduler.plan())
    scheduler.commit(plan, executor.collect(plan.step_id))
    scheduler.add(make_request("big", prompt_of(30), max_tokens=2))
    for _ in range(3):
        executor.launch(plan := scheduler.plan())
        scheduler.commit(plan, executor.collect(plan.step_id))
        check_invariants(scheduler)
        assert scheduler.stats().waiting == 1
    outcomes = drive(scheduler, executor)
    assert outcomes["big", 0].finish is FinishReason.LENGTH


def test_chunks_stay_aligned():
    scheduler, executor = pair(chunk_align=3, block_size=7)
    requests = [make_request("r", prompt_of(60), max_tokens=3)]
    assert cached(assert_cold_is_warm(lambda: (scheduler, executor), requests)) == [42]  # 42 = lcm(3, 7) * 2


def test_each_token_is_computed_once_by_a_crowd_that_shares():
    """Ten users, one system prompt, one after the other: it is computed once."""
    scheduler, executor = pair({"max_num_seqs": 1})
    system = prompt_of(400)
    drive(scheduler, executor, [make_request(f"u{i}", [*system, i], max_tokens=1) for i in range(10)])
    computed = Counter(position for plan in executor.plans for position in plan.positions)
    assert {computed[position] for position in range(400)} == {1}
    assert computed[400] == 10
