"""Who gets in, and who is refused."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.cache.prefix_cache import PrefixCache
from legato.core.config import SchedulerConfig
from legato.core.errors import QueueFullError, RequestError
from legato.core.types import FinishReason
from legato.scheduler.admit import _Room
from legato.scheduler.ledger import Ledger
from legato.simulate.traffic import Visit
from support.driving import drive, make_request, scheduler_for
from support.oracles import assert_drained, assert_poison_harms_nobody
from support.scripted import ScriptedExecutor, window_group
from support.simulated import replay, tiny_info


def refused(scheduler, request):
    with pytest.raises(RequestError) as caught:
        scheduler.check(request)
    with pytest.raises(RequestError):
        scheduler.add(request)
    assert not scheduler.has_work
    return caught.value


@pytest.mark.parametrize("length", [64, 65, 1000])
def test_a_prompt_that_leaves_no_room_in_the_context_is_refused(length):
    error = refused(scheduler_for(ScriptedExecutor(max_position=64)), make_request("r", [1] * length))
    assert (error.param, error.code) == ("prompt", "context_length_exceeded")
    assert "64" in str(error)
    assert str(length) in str(error)


def test_a_prompt_larger_than_the_pool_is_refused_and_others_run():
    """C01: 64 blocks, a prompt of 80, then small ones."""
    executor = ScriptedExecutor(num_blocks=64, block_size=16, max_position=100_000)
    scheduler = scheduler_for(executor)
    assert scheduler.context == 64 * 16 + 1
    error = refused(scheduler, make_request("big", [1] * 80 * 16))
    assert error.code == "context_length_exceeded"
    outcomes = drive(scheduler, executor, [make_request(f"r{i}", [1] * 20, max_tokens=5) for i in range(4)])
    assert all(outcome.finish is FinishReason.LENGTH for outcome in outcomes.values())


@pytest.mark.parametrize("length", [1, 900, 1023, 1024])
def test_an_answer_larger_than_the_pool_ends_with_length(length):
    """C01, second: the prompt fits, prompt and max_tokens do not."""
    executor = ScriptedExecutor(num_blocks=64, block_size=16, max_position=100_000)
    scheduler = scheduler_for(executor)
    requests = [make_request("big", [1] * length, max_tokens=5000), make_request("small", [1, 2], max_tokens=3)]
    outcomes = drive(scheduler, executor, requests)
    assert len(outcomes["big", 0].tokens) == 1025 - length
    assert outcomes["big", 0].finish is FinishReason.LENGTH
    assert_drained(scheduler)


def test_a_window_does_not_bound_the_sequence():
    executor = ScriptedExecutor(groups=(window_group(20),), num_blocks=8, block_size=8, max_position=500)
    scheduler = scheduler_for(executor)
    assert scheduler.context == 500
    outcomes = drive(scheduler, executor, [make_request(f"r{i}", [i] * 300, max_tokens=200) for i in range(3)])
    assert all(len(outcome.tokens) == 200 for outcome in outcomes.values())
    assert_drained(scheduler)


@pytest.mark.parametrize(("prompt", "message"), [((), "empty"), ((1, 1000), "999"), ((-1,), "999")])
def test_impossible_prompts_are_refused(prompt, message):
    error = refused(scheduler_for(ScriptedExecutor()), make_request("r", prompt))
    assert error.param == "prompt"
    assert message in str(error)


def test_a_request_without_a_seed_is_refused():
    assert refused(scheduler_for(ScriptedExecutor()), make_request("r", [1], seed=None)).param == "seed"


def test_a_live_request_id_is_refused_and_can_be_used_again_later():
    executor = ScriptedExecutor()
    scheduler = scheduler_for(executor)
    scheduler.add(make_request("r", [1]))
    with pytest.raises(RequestError, match="already"):
        scheduler.add(make_request("r", [2]))
    drive(scheduler, executor)
    assert len(drive(scheduler, executor, [make_request("r", [2])])) == 1


def test_poison_harms_nobody():
    def make():
        executor = ScriptedExecutor(max_position=128)
        return scheduler_for(executor), executor

    bystander, probe = make_request("bystander", range(50), max_tokens=20), make_request("probe", range(9))
    for poison in ([], [1] * 500, [10**18], [-1]):
        assert_poison_harms_nobody(make, make_request("poison", poison), probe, bystander)


def test_the_queue_is_bounded_beyond_the_free_places():
    executor = ScriptedExecutor()
    scheduler = scheduler_for(executor, max_num_seqs=2, max_num_queued_reqs=3)
    for i in range(5):
        scheduler.add(make_request(f"r{i}", [1], max_tokens=3))
    with pytest.raises(QueueFullError) as caught:
        scheduler.add(make_request("one more", [1]))
    assert caught.value.status == 429
    outcomes = drive(scheduler, executor)
    assert len(outcomes) == 5
    scheduler.add(make_request("one more", [1]))


def test_first_come_first_served():
    executor = ScriptedExecutor(num_blocks=8, block_size=4)
    scheduler = scheduler_for(executor, max_num_seqs=3)
    first_tokens = []
    for i, length in enumerate((20, 25, 3, 30, 2, 9)):
        scheduler.add(make_request(f"r{i}", [1] * length, max_tokens=2))
    while scheduler.has_work:
        plan = scheduler.plan()
        executor.launch(plan)
        for event in scheduler.commit(plan, executor.collect(plan.step_id)):
            if event.request_id not in first_tokens:
                first_tokens.append(event.request_id)
    assert first_tokens == [f"r{i}" for i in range(6)]


def test_admission_leaves_blocks_for_those_inside():
    """Two prompts that together exceed the pool are not half-loaded side by side."""
    executor = ScriptedExecutor(num_blocks=10, block_size=4)
    scheduler = scheduler_for(executor, long_prefill_token_threshold=4)
    requests = [make_request(f"r{i}", [i] * 30, max_tokens=3) for i in range(4)]
    drive(scheduler, executor, requests)
    assert scheduler.stats().preemptions == 0
    assert max(plan.num_seqs for plan in executor.plans) == 1


def test_no_more_is_reserved_than_an_answer_can_take():
    executor = ScriptedExecutor(num_blocks=4, block_size=4)
    scheduler = scheduler_for(executor)
    drive(scheduler, executor, [make_request(f"r{i}", [i] * 7, max_tokens=2) for i in range(2)])
    assert executor.plans[0].num_seqs == 2


def test_nobody_is_admitted_before_there_are_rows_for_them():
    executor = ScriptedExecutor()
    scheduler = scheduler_for(executor, max_num_batched_tokens=16, long_prefill_token_threshold=8)
    for i in range(10):
        scheduler.add(make_request(f"r{i}", [i] * 100))
    scheduler.plan()
    assert (scheduler.stats().running, scheduler.stats().waiting) == (2, 8)


def test_a_newcomer_does_not_push_others_out_at_once():
    """Two prompts that just fill the pool would leave neither a block to grow into."""
    executor = ScriptedExecutor(num_blocks=20, block_size=4)
    scheduler = scheduler_for(executor)
    drive(scheduler, executor, [make_request(f"r{i}", [i] * 40, max_tokens=38) for i in range(5)])
    assert executor.plans[0].num_seqs == 1
    assert scheduler.stats().preemptions == 0


def test_recomputation_is_bounded():
    """Who returns can grow at once, so that answers get on: here no one is preempted more than twice."""
    executor = ScriptedExecutor(num_blocks=12, block_size=4)
    scheduler = scheduler_for(executor)
    drive(scheduler, executor, [make_request(f"r{i}", [i] * 8, seed=i, max_tokens=24) for i in range(12)])
    resets = [reset.seed for plan in executor.plans for reset in plan.resets]
    assert len(resets) > 12
    assert max(resets.count(i) for i in range(12)) <= 3


def test_the_first_that_waits_for_blocks_looks_for_its_prefix_once(monkeypatch):
    """Not in each step: that would cost a long prompt milliseconds. It looks again when somebody leaves."""
    looked = Counter()
    take = PrefixCache.take

    def counted(cache, tables, chain, tokens):
        looked[len(tokens)] += 1
        return take(cache, tables, chain, tokens)

    monkeypatch.setattr(PrefixCache, "take", counted)
    executor = ScriptedExecutor(block_size=4, num_blocks=30)
    scheduler = scheduler_for(executor)
    drive(scheduler, executor, [make_request("known", range(50, 98), max_tokens=1)])
    small = make_request("small", range(40), max_tokens=60)
    large = make_request("large", [*range(50, 98), *range(200, 240)], max_tokens=4)
    outcomes = drive(scheduler, executor, [small, large])
    assert [len(outcomes[name, 0].tokens) for name in ("small", "large")] == [60, 4]
    assert looked[88] == 2


def test_the_first_that_waits_for_blocks_enters_when_another_has_computed_its_beginning():
    """Both do not fit side by side; but they share all that the first has computed."""
    executor = ScriptedExecutor(block_size=4, num_blocks=18)
    scheduler = scheduler_for(executor, max_num_batched_tokens=64, long_prefill_token_threshold=16)
    requests = [make_request("a", range(40), max_tokens=20), make_request("b", range(42), max_tokens=4)]
    outcomes = drive(scheduler, executor, requests)
    assert [outcomes[name, 0].num_cached for name in ("a", "b")] == [0, 40]
    assert [plan.num_seqs for plan in executor.plans].count(2) == 4


VISITS = st.lists(
    st.builds(
        Visit,
        at_s=st.floats(0, 0.3).map(lambda at_s: round(at_s, 4)),
        prompt_tokens=st.integers(1, 150),
        output_tokens=st.integers(1, 60),
        shared=st.sampled_from([(), (1,), (2,), (1, 3)]),
        shared_size=st.just(48),
        priority=st.integers(0, 2),
        tenant=st.sampled_from(["a", "b"]),
    ),
    max_size=14,
)


@settings(max_examples=40, deadline=None)
@given(
    visits=VISITS,
    num_blocks=st.integers(14, 40),
    policy=st.sampled_from(["fcfs", "static", "priority", "fair", "deadline"]),
)
def test_who_is_not_looked_at_again_would_not_fit(visits, num_blocks, policy):
    """While it waits prefixes become longer and shared, others are preempted, and others become the first."""
    plain = Ledger.still_lacks_room

    def checked(ledger, sequence):
        lacks = plain(ledger, sequence)
        if lacks:
            ledger.take_prefix(sequence)
            assert not _Room(ledger).fits(sequence)
            ledger.give_back_blocks(sequence)
        return lacks

    config = SchedulerConfig(policy=policy, max_num_seqs=5, max_num_batched_tokens=32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "still_lacks_room", checked)
        replay(visits, tiny_info(num_blocks=num_blocks, max_seqs=5), config, leap=False)
