"""The naive baseline: batches that are held until their longest member ends."""

import pytest

from legato.core.types import FinishReason
from support.driving import drive, make_request, scheduler_for
from support.oracles import assert_drained, assert_same
from support.scripted import ScriptedExecutor


def run(requests, events=None, **config):
    executor = ScriptedExecutor(num_blocks=64, block_size=4)
    scheduler = scheduler_for(executor, **config)
    outcomes = drive(scheduler, executor, requests, events)
    assert_drained(scheduler)
    return outcomes, executor.plans, scheduler


def padding_rows(plan):
    return sum(slot < 0 for slot in plan.kv_slots[0])


def test_static_gives_what_continuous_batching_gives():
    requests = [make_request(f"r{i}", range(i, i + 5 + i), seed=i, max_tokens=3 + 2 * i) for i in range(10)]
    continuous, _, _ = run(requests)
    for padding in (False, True):
        static, plans, _ = run(requests, policy="static", max_num_seqs=4, static_padding=padding)
        assert_same(continuous, static)
        assert any(padding_rows(plan) for plan in plans) == padding


def test_a_batch_is_held_until_its_longest_member_ends():
    requests = [make_request(f"r{i}", [i, 7], seed=i, max_tokens=length) for i, length in enumerate((2, 6, 3, 1))]
    _, plans, _ = run(requests, policy="static", max_num_seqs=2)
    assert [plan.num_rows for plan in plans] == [4, 2, 1, 1, 1, 1, 4, 1, 1]
    assert [len(plan.resets) for plan in plans] == [2, 0, 0, 0, 0, 0, 2, 0, 0]


def test_padding_computes_a_row_for_every_place_and_pads_prompts():
    requests = [make_request("a", range(5), max_tokens=2), make_request("b", range(9), max_tokens=6)]
    _, plans, scheduler = run(requests, policy="static", static_padding=True)
    assert [plan.num_rows for plan in plans] == [18, 2, 2, 2, 2, 2]
    assert [padding_rows(plan) for plan in plans] == [4, 0, 1, 1, 1, 1]
    assert all(len(plan.out_rows) == 2 - (index > 1) for index, plan in enumerate(plans))
    assert scheduler.stats().last_step.padding == 1


def test_prompt_padding_is_chunked_like_a_prompt():
    requests = [make_request("a", range(2), max_tokens=30), make_request("b", range(40), max_tokens=30)]
    _, plans, _ = run(
        requests, policy="static", static_padding=True, max_num_batched_tokens=16, long_prefill_token_threshold=7
    )
    lengths = [b - a for plan in plans for a, b in zip(plan.row_offsets, plan.row_offsets[1:], strict=False)]
    assert max(lengths) == 7
    assert sum(padding_rows(plan) for plan in plans[:30]) == 38  # "a" ends in the 30th step


def test_padding_follows_the_prompt():
    executor = ScriptedExecutor(chunk_align=3)
    scheduler = scheduler_for(executor, policy="static", static_padding=True, long_prefill_token_threshold=5)
    drive(scheduler, executor, [make_request("a", range(9), max_tokens=1), make_request("b", range(21), max_tokens=9)])
    assert [padding_rows(plan) for plan in executor.plans[:5]] == [0, 0, 2, 6, 6]


def test_held_places_leave_room_for_prompts():
    requests = [make_request("a", range(2), max_tokens=1), make_request("b", range(60), max_tokens=3)]
    outcomes, plans, _ = run(requests, policy="static", static_padding=True, max_num_batched_tokens=8)
    assert max(plan.num_rows for plan in plans) == 8
    assert len(outcomes["b", 0].tokens) == 3


def test_nobody_joins_a_batch_under_way():
    late = {1: [lambda s: s.add(make_request("late", [1, 2], max_tokens=1, seed=9))]}
    _, plans, _ = run([make_request("early", [1], max_tokens=5)], late, policy="static", max_num_seqs=8)
    assert [[reset.seed for reset in plan.resets] for plan in plans] == [[0], [], [], [], [], [9]]


def test_a_batch_that_is_aborted_lets_the_next_one_in():
    requests = [make_request(f"r{i}", [i] * 30, seed=i, max_tokens=30) for i in range(4)]
    abort = [lambda s: s.abort("r0"), lambda s: s.abort("r1")]
    outcomes, plans, _ = run(
        requests, {2: abort}, policy="static", max_num_seqs=2, static_padding=True, long_prefill_token_threshold=9
    )
    assert [outcomes[f"r{i}", 0].finish for i in range(2)] == [FinishReason.ABORT] * 2
    assert len(plans[2].resets) == 2


@pytest.mark.parametrize("padding", [False, True])
def test_members_aborted_before_their_first_row_only_hold_their_place(padding):
    requests = [make_request(f"r{i}", [i] * 30, seed=i, max_tokens=4) for i in range(3)]
    outcomes, plans, _ = run(
        requests,
        {1: [lambda s: s.abort("r1")]},
        policy="static",
        max_num_seqs=2,
        max_num_batched_tokens=4,
        static_padding=padding,
    )
    assert outcomes["r1", 0].tokens == []
    assert all(len(outcomes[f"r{i}", 0].tokens) == 4 for i in (0, 2))
    assert max(plan.num_rows for plan in plans) <= 4


def test_a_batch_reserves_its_longest_answers_and_preempts_nobody():
    requests = [make_request(f"r{i}", [i] * 20, seed=i, max_tokens=100) for i in range(6)]
    _, plans, scheduler = run(requests, policy="static")
    assert scheduler.stats().preemptions == 0
    assert max(plan.num_seqs for plan in plans) == 2  # 64 blocks hold two sequences of 30 blocks
