"""What goes into a step."""

import pickle
from array import array
from dataclasses import replace

import pytest

from legato.core.config import SchedulerConfig
from legato.core.errors import ConfigError
from legato.core.types import ExecutorInfo
from legato.scheduler.scheduler import Scheduler
from support.driving import drive, make_request, scheduler_for
from support.oracles import assert_cold_is_warm, assert_drained, assert_solo_is_crowd
from support.scripted import ScriptedExecutor, full_group, window_group


def rows_of(plan):
    """{sequence slot: rows} of a plan."""
    return {slot: plan.row_offsets[i + 1] - plan.row_offsets[i] for i, slot in enumerate(plan.seq_slots)}


def commit(scheduler, executor):
    plan = scheduler.plan()
    executor.launch(plan)
    return plan, scheduler.commit(plan, executor.collect(plan.step_id))


def test_a_prompt_is_computed_in_chunks_and_sampled_once():
    executor = ScriptedExecutor()
    scheduler = scheduler_for(executor, long_prefill_token_threshold=8)
    drive(scheduler, executor, [make_request("r", range(1, 21), max_tokens=3)])
    assert [plan.num_rows for plan in executor.plans] == [8, 8, 4, 1, 1]
    assert [list(plan.out_rows) for plan in executor.plans] == [[], [], [3], [0], [0]]


def test_without_a_threshold_a_prompt_may_fill_the_step():
    executor = ScriptedExecutor()
    scheduler = scheduler_for(executor, long_prefill_token_threshold=0, max_num_batched_tokens=100)
    drive(scheduler, executor, [make_request("r", range(150), max_tokens=1)])
    assert [plan.num_rows for plan in executor.plans] == [100, 50]


def test_decodes_get_their_row_and_prompts_share_the_rest():
    executor = ScriptedExecutor()
    scheduler = scheduler_for(executor, max_num_batched_tokens=10, long_prefill_token_threshold=6)
    scheduler.add(make_request("short", [1, 2], max_tokens=9))
    commit(scheduler, executor)
    scheduler.add(make_request("long", range(1, 31), max_tokens=1))
    scheduler.add(make_request("later", range(1, 31), max_tokens=1))
    assert rows_of(scheduler.plan()) == {0: 1, 1: 6, 2: 3}


def test_chunks_end_at_multiples_of_chunk_align_or_with_the_tokens():
    executor = ScriptedExecutor(chunk_align=4)
    scheduler = scheduler_for(executor, max_num_batched_tokens=12, long_prefill_token_threshold=7)
    requests = [make_request(f"r{i}", range(1, 20 + i), max_tokens=5) for i in range(6)]
    drive(scheduler, executor, requests)
    for plan in executor.plans:
        for index in range(plan.num_seqs):
            last_row = plan.row_offsets[index + 1] - 1
            assert (plan.positions[last_row] + 1) % 4 == 0 or last_row in plan.out_rows


def test_a_freed_place_is_taken_in_the_next_step():
    executor = ScriptedExecutor()
    scheduler = scheduler_for(executor, max_num_seqs=2)
    for name, length in (("a", 1), ("b", 3), ("c", 1), ("d", 1)):
        scheduler.add(make_request(name, [1, 2], max_tokens=length))
    assert [len(commit(scheduler, executor)[0].seq_slots) for _ in range(3)] == [2, 2, 2]
    assert not scheduler.has_work


def test_an_aborted_place_and_its_blocks_are_taken_in_the_next_step():
    executor = ScriptedExecutor(num_blocks=4)
    scheduler = scheduler_for(executor)
    scheduler.add(make_request("big", range(1, 60), max_tokens=1000))
    scheduler.add(make_request("next", range(2, 61), max_tokens=2))
    for _ in range(3):
        commit(scheduler, executor)
    assert scheduler.stats().waiting == 1
    scheduler.abort("big")
    plan = scheduler.plan()
    assert [event.request_id for event in scheduler.take_events()] == ["big"]
    assert list(plan.tokens) == list(range(2, 61))


def test_a_slot_stays_and_is_reset_once():
    executor = ScriptedExecutor()
    scheduler = scheduler_for(executor, long_prefill_token_threshold=3)
    scheduler.add(make_request("a", range(1, 9), max_tokens=4, temperature=0.5, top_k=7, seed=3))
    scheduler.add(make_request("b", range(1, 5), max_tokens=6))
    plans = [commit(scheduler, executor)[0] for _ in range(6)]
    assert [(r.slot, r.temperature, r.top_k, r.seed) for r in plans[0].resets] == [(0, 0.5, 7, 3), (1, 1.0, 0, 0)]
    assert all(not plan.resets for plan in plans[1:])
    assert all(set(plan.seq_slots) <= {0, 1} for plan in plans)


def test_choices_are_sequences_of_their_own():
    executor = ScriptedExecutor()
    scheduler = scheduler_for(executor)
    outcomes = drive(scheduler, executor, [make_request("r", range(1, 9), n=4, max_tokens=5, seed=7)])
    assert set(outcomes) == {("r", choice) for choice in range(4)}
    assert len({tuple(outcome.tokens) for outcome in outcomes.values()}) == 4
    assert sorted(reset.choice for reset in executor.plans[0].resets) == [0, 1, 2, 3]


def test_a_long_prompt_gets_on_in_every_step_beside_a_full_batch():
    """C13: with decodes always present, whoever is first in line computes a chunk in each step."""
    executor = ScriptedExecutor(max_seqs=4)
    scheduler = scheduler_for(executor, max_num_seqs=4, max_num_batched_tokens=4)
    arrivals = {i: [lambda s, i=i: s.add(make_request(f"short{i}", [1, 2], max_tokens=8))] for i in range(60)}
    arrivals[8].append(lambda s: s.add(make_request("long", range(100, 128), max_tokens=1)))
    drive(scheduler, executor, (), arrivals)
    rows = [
        sum(100 <= t < 128 and p == t - 100 for t, p in zip(plan.tokens, plan.positions, strict=True))
        for plan in executor.plans
    ]
    first, last = rows.index(next(r for r in rows if r)), max(i for i, r in enumerate(rows) if r)
    assert sum(rows) == 28
    assert all(rows[first : last + 1])


def test_an_aligned_chunk_always_fits_beside_the_decodes():
    executor = ScriptedExecutor(chunk_align=4)
    scheduler = scheduler_for(executor, max_num_batched_tokens=8, max_num_seqs=8)
    assert scheduler.stats().slots_total == 5
    for i in range(4):
        scheduler.add(make_request(f"decoding{i}", [1, 2, 3, 4], max_tokens=50))
    for _ in range(4):
        commit(scheduler, executor)
    scheduler.add(make_request("long", range(100, 120), max_tokens=1))
    assert [commit(scheduler, executor)[0].num_rows for _ in range(6)] == [8, 8, 8, 8, 8, 4]


def test_decodes_get_on_in_every_step_beside_long_prompts():
    """C13, the reverse."""
    executor = ScriptedExecutor()
    scheduler = scheduler_for(executor, max_num_batched_tokens=16, long_prefill_token_threshold=16)
    scheduler.add(make_request("decoding", [1], max_tokens=50))
    commit(scheduler, executor)
    for i in range(8):
        scheduler.add(make_request(f"long{i}", range(1, 100), max_tokens=1))
    for _ in range(49):
        _, events = commit(scheduler, executor)
        assert "decoding" in {event.request_id for event in events}


def test_a_step_never_exceeds_the_rows_of_the_executor():
    executor = ScriptedExecutor(max_rows=5)
    scheduler = scheduler_for(executor, max_num_seqs=64)
    requests = [make_request(f"r{i}", range(1, 12), max_tokens=40) for i in range(12)]
    drive(scheduler, executor, requests)
    assert max(plan.num_rows for plan in executor.plans) == 5
    assert max(plan.num_seqs for plan in executor.plans) == 5


def test_the_smallest_chunk_must_fit_a_step():
    info = ScriptedExecutor(chunk_align=64).info()
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        Scheduler(info, SchedulerConfig(max_num_batched_tokens=63))


def test_padding_without_the_static_policy_is_refused():
    with pytest.raises(ConfigError, match="static_padding"):
        Scheduler(ScriptedExecutor().info(), SchedulerConfig(static_padding=True))


def test_several_position_axes_are_refused():
    info = ExecutorInfo("x", (full_group(),), 16, 4, 16, 4, 64, 100, position_axes=3)
    with pytest.raises(ConfigError, match="3 position axes"):
        Scheduler(info, SchedulerConfig())


@pytest.mark.parametrize("groups", [(full_group(),), (window_group(9),), (full_group(), window_group(20))])
@pytest.mark.parametrize("policy", ["fcfs", "static"])
@pytest.mark.parametrize("plans_in_flight", [1, 3])
def test_solo_is_crowd(groups, policy, plans_in_flight):
    def make():
        executor = ScriptedExecutor(groups=groups, block_size=4, num_blocks=32, plans_in_flight=plans_in_flight)
        return scheduler_for(executor, policy=policy, long_prefill_token_threshold=7, max_num_seqs=5), executor

    requests = [
        make_request(
            f"r{i}",
            range(i, i + 3 + 5 * i),
            n=1 + i % 3,
            seed=i,
            max_tokens=4 + i,
            top_k=i,
            frequency_penalty=0.5 * (i % 2),
            logprobs=i if i % 2 else None,
        )
        for i in range(8)
    ]
    assert_solo_is_crowd(make, requests)
    assert_cold_is_warm(make, requests)


def test_stats_say_what_is_going_on():
    executor = ScriptedExecutor(num_blocks=10)
    now = 3.0
    scheduler = Scheduler(executor.info(), SchedulerConfig(max_num_seqs=1), clock=lambda: now)
    scheduler.add(make_request("a", range(1, 21), max_tokens=2, arrival_s=1.0))
    scheduler.add(make_request("b", range(1, 21), max_tokens=2, arrival_s=2.0))
    commit(scheduler, executor)
    stats = scheduler.stats()
    assert (stats.running, stats.waiting, stats.slots_used, stats.slots_total) == (1, 1, 1, 1)
    assert (stats.blocks_used, stats.blocks_total, stats.kv_usage) == (2, 10, 0.2)
    assert stats.kv_waste == pytest.approx(12 / 32)
    assert (stats.steps, stats.last_step.rows, stats.last_step.sequences, stats.last_step.outputs) == (1, 20, 1, 1)
    assert stats.oldest_wait_s == 1.0
    while scheduler.has_work:
        commit(scheduler, executor)
    assert_drained(scheduler)
    assert scheduler.stats().oldest_wait_s == 0.0


class Elsewhere(ScriptedExecutor):
    """Plans and results go through pickle, as they would to another process."""

    def launch(self, plan):
        super().launch(pickle.loads(pickle.dumps(plan)))  # noqa: S301  our own bytes

    def collect(self, step_id):
        return pickle.loads(pickle.dumps(super().collect(step_id)))  # noqa: S301


def test_plans_and_results_can_be_sent_to_another_process():
    requests = [make_request("a", [1, 2, 3], n=2, logprobs=2), make_request("b", range(40), repetition_penalty=1.5)]
    here, there = ScriptedExecutor(num_blocks=6), Elsewhere(num_blocks=6)
    outcomes = drive(scheduler_for(here), here, requests)
    assert drive(scheduler_for(there), there, requests) == outcomes
    assert pickle.loads(pickle.dumps(there.plans)) == here.plans  # noqa: S301


def test_a_result_belongs_to_its_step():
    executor = ScriptedExecutor()
    scheduler = scheduler_for(executor)
    scheduler.add(make_request("a", [1, 2], max_tokens=3))
    plan, _ = commit(scheduler, executor)
    executor.launch(other := scheduler.plan())
    result = executor.collect(other.step_id)
    with pytest.raises(ValueError, match="result of step 1 given for step 0"):
        scheduler.commit(plan, result)
    scheduler.commit(other, result)
    with pytest.raises(KeyError):
        scheduler.commit(other, result)


@pytest.mark.parametrize(
    "extra",
    [
        {"accepted": array("i", [0])},
        {"drafts": ((1,),)},
        {"pooled": (array("f", [0.5]),)},
        {"transfers": (0,)},
    ],
    ids=lambda extra: next(iter(extra)),
)
def test_a_result_that_nobody_asked_for_is_refused(extra):
    executor = ScriptedExecutor()
    scheduler = scheduler_for(executor)
    scheduler.add(make_request("a", [1, 2], max_tokens=3))
    executor.launch(plan := scheduler.plan())
    result = executor.collect(plan.step_id)
    with pytest.raises(ValueError, match="step 0 holds drafts, pooled vectors or transfers"):
        scheduler.commit(plan, replace(result, **extra))
    assert scheduler.commit(plan, result)
