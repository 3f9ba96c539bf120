"""C03: preempted and resumed sequences give what they give undisturbed."""

import pytest

from legato.core.types import FinishReason
from legato.scheduler.admit import GUARANTEED_STEPS
from support.driving import drive, make_request, scheduler_for
from support.oracles import assert_roomy_is_starved
from support.scripted import ScriptedExecutor, full_group, window_group

SAMPLING = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.8, "seed": 42},
    "repetition": {"repetition_penalty": 1.3},
    "frequency": {"frequency_penalty": 0.7},
    "presence": {"presence_penalty": 0.7},
    "logprobs": {"logprobs": 3},
    "min_tokens": {"min_tokens": 10, "stop_token_ids": (1, 2, 3)},
}


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("num_blocks", [7, 9, 12])
@pytest.mark.parametrize("plans_in_flight", [1, 2, 4])
def test_roomy_is_starved(sampling, num_blocks, plans_in_flight):
    def make(blocks):
        executor = ScriptedExecutor(
            num_blocks=blocks, block_size=4, vocab_size=50, max_position=29, plans_in_flight=plans_in_flight
        )
        return scheduler_for(executor, long_prefill_token_threshold=5, max_num_batched_tokens=16), executor

    requests = [
        make_request(f"r{i}", range(i, i + 2 + i), max_tokens=20, **{"seed": i, **SAMPLING[sampling]}) for i in range(6)
    ]
    assert_roomy_is_starved(lambda: make(1000), lambda: make(num_blocks), requests)


@pytest.mark.parametrize("window", [1, 5, 30])
def test_roomy_is_starved_with_a_window_group(window):
    def make(blocks):
        groups = (full_group(), window_group(window))
        executor = ScriptedExecutor(groups=groups, num_blocks=blocks, block_size=4, max_position=40)
        return scheduler_for(executor, long_prefill_token_threshold=5), executor

    requests = [make_request(f"r{i}", range(i, i + 12), max_tokens=25) for i in range(6)]
    assert_roomy_is_starved(lambda: make(1000), lambda: make(10), requests)


def resets_by_seed(executor):
    resets = {}
    for plan in executor.plans:
        for reset in plan.resets:
            resets.setdefault(reset.seed, []).append(reset)
    return resets


def test_the_latest_arrival_is_preempted_and_resumes_with_its_history():
    executor = ScriptedExecutor(num_blocks=8, block_size=4)
    scheduler = scheduler_for(executor)
    fields = {"max_tokens": 20, "presence_penalty": 0.5, "repetition_penalty": 1.1}
    outcomes = drive(scheduler, executor, [make_request(f"r{i}", [i] * 6, seed=i, **fields) for i in range(2)])
    resets = resets_by_seed(executor)
    assert len(resets[0]) == 1
    assert len(resets[1]) == 2
    again = resets[1][1]
    assert again.prompt == (1,) * 6
    assert 0 < len(again.output) < 20
    assert list(again.output) == outcomes["r1", 0].tokens[: len(again.output)]


def test_the_preempted_come_back_before_those_that_never_ran():
    executor = ScriptedExecutor(num_blocks=8, block_size=4)
    scheduler = scheduler_for(executor, max_num_seqs=2)
    requests = [make_request(f"r{i}", [i] * 6, seed=i, max_tokens=20) for i in range(2)]
    requests.append(make_request("later", [9] * 6, seed=9, max_tokens=2))
    drive(scheduler, executor, requests)
    order = [reset.seed for plan in executor.plans for reset in plan.resets]
    assert order == [0, 1, 1, 9]


def test_three_preemptions_of_one_request():
    """Each of three earlier arrivals outgrows the pool in turn; the last one in is sent back each time."""

    def make(blocks):
        executor = ScriptedExecutor(num_blocks=blocks, block_size=4)
        return scheduler_for(executor, max_num_seqs=2), executor

    requests = [make_request(f"r{i}", [i] * 4, seed=i, max_tokens=24) for i in range(5)]
    roomy, roomy_executor = make(1000)
    expected = drive(roomy, roomy_executor, requests)
    scheduler, executor = make(8)
    outcomes = drive(scheduler, executor, requests)
    assert outcomes == expected
    assert max(len(resets) for resets in resets_by_seed(executor).values()) >= 2
    assert scheduler.stats().preemptions >= 3


def test_a_preempted_sequence_can_be_aborted_and_stopped():
    for end in ("abort", "stop"):
        executor = ScriptedExecutor(num_blocks=8, block_size=4)
        scheduler = scheduler_for(executor)
        asked = []

        def ask(scheduler=scheduler, end=end, asked=asked):
            if scheduler.stats().preemptions and not asked:
                asked.append(scheduler.stats())
                scheduler.abort("r1") if end == "abort" else scheduler.finish("r1", 0)

        requests = [make_request(f"r{i}", [i] * 6, max_tokens=20) for i in range(2)]
        outcomes = drive(scheduler, executor, requests, after_step=ask)
        assert asked[0].waiting == 1
        assert outcomes["r1", 0].finish == end
        assert 0 < len(outcomes["r1", 0].tokens) < 20
        assert len(outcomes["r0", 0].tokens) == 20


def test_a_result_from_before_a_preemption_is_dropped():
    executor = ScriptedExecutor(plans_in_flight=2)
    scheduler = scheduler_for(executor)
    scheduler.add(make_request("r", [1, 2], max_tokens=1))
    before = scheduler.plan()
    executor.launch(before)
    scheduler._ledger.evict(scheduler._ledger.running[0])
    after = scheduler.plan()
    executor.launch(after)
    assert scheduler.commit(before, executor.collect(before.step_id)) == []
    (event,) = scheduler.commit(after, executor.collect(after.step_id))
    assert (len(event.tokens), event.finish) == (1, FinishReason.LENGTH)


def preemptions_by_seed(policy, num_blocks, seed):
    """(scheduler, steps from each admission to the preemption that ended it, by request) of a starved run."""
    executor = ScriptedExecutor(num_blocks=num_blocks, block_size=4, emit=lambda history, params, seen: 7)
    scheduler = scheduler_for(executor, policy=policy, long_prefill_token_threshold=16)
    admitted, lives = {}, {}

    def look():
        for move in scheduler.moves():
            step = scheduler.stats().steps
            if move.entered:
                admitted[move.request_id] = step
            else:
                lives.setdefault(move.request_id, []).append(step - admitted[move.request_id])

    requests = [make_request(f"r{i}", [i] * (5 + 3 * i), seed=i, max_tokens=150 + seed) for i in range(8)]
    outcomes = drive(scheduler, executor, requests, after_step=look)
    assert all(len(outcome.tokens) == 150 + seed for outcome in outcomes.values())
    return scheduler, lives


@pytest.mark.parametrize("policy", ["fcfs", "fair", "priority"])
@pytest.mark.parametrize("num_blocks", [50, 80, 120])
def test_who_comes_back_runs_a_guaranteed_while(policy, num_blocks):
    """C03: no thrash. From its second admission on, nobody is preempted within GUARANTEED_STEPS."""
    scheduler, lives = preemptions_by_seed(policy, num_blocks, 0)
    assert scheduler.stats().preemptions >= 3
    again = [steps for each in lives.values() for steps in each[1:]]
    assert all(steps >= GUARANTEED_STEPS for steps in again)


@pytest.mark.parametrize("policy", ["fcfs", "fair", "priority"])
def test_no_deadlock_in_any_pool_that_holds_the_largest(policy):
    """C02: 179 positions are computed, which take 45 blocks."""
    for num_blocks in range(45, 49):
        scheduler, _ = preemptions_by_seed(policy, num_blocks, 2)
        assert not scheduler.has_work
