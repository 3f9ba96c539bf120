"""The naive baseline: batches that are held until their longest member ends."""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.core.types import FinishReason, StepPlan
from support.driving import drive, make_request, scheduler_for
from support.invariants import check_invariants
from support.oracles import assert_drained, assert_same
from support.scripted import ScriptedExecutor


@dataclass
class Run:
    outcomes: dict = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)
    padding: list[int] = field(default_factory=list)  # rows of each step that are for nobody
    preemptions: int = 0

    @property
    def rows(self) -> list[int]:
        return [plan.num_rows for plan in self.plans]

    def positions(self, slot: int) -> list[list[int]]:
        """Of the rows of a place, step by step."""
        found = []
        for plan in self.plans:
            spans = dict(zip(plan.seq_slots, pairwise(plan.row_offsets), strict=True))
            found.append(list(plan.positions[slice(*spans[slot])]) if slot in spans else [])
        return found


def run(requests, events=None, *, num_blocks=64, chunk_align=1, max_position=4096, **config):
    executor = ScriptedExecutor(
        num_blocks=num_blocks, block_size=4, chunk_align=chunk_align, max_position=max_position, repeats=True
    )
    scheduler = scheduler_for(executor, **config)
    done = Run(plans=executor.plans)
    done.outcomes = drive(
        scheduler,
        executor,
        requests,
        events,
        after_step=lambda: (check_invariants(scheduler), done.padding.append(scheduler.stats().last_step.padding)),
    )
    done.preemptions = scheduler.stats().preemptions
    assert_drained(scheduler)
    return done


def padded(requests, events=None, **config):
    return run(requests, events, policy="static", static_padding=True, **config)


def test_static_gives_what_continuous_batching_gives():
    requests = [make_request(f"r{i}", range(i, i + 5 + i), seed=i, max_tokens=3 + 2 * i) for i in range(10)]
    continuous = run(requests)
    for padding in (False, True):
        static = run(requests, policy="static", max_num_seqs=4, static_padding=padding)
        assert_same(continuous.outcomes, static.outcomes)
        assert any(static.padding) == padding
        assert sum(static.rows) - sum(static.padding) == sum(continuous.rows)


def test_a_batch_is_held_until_its_longest_member_ends():
    requests = [make_request(f"r{i}", [i, 7], seed=i, max_tokens=length) for i, length in enumerate((2, 6, 3, 1))]
    done = run(requests, policy="static", max_num_seqs=2)
    assert done.rows == [4, 2, 1, 1, 1, 1, 4, 1, 1]
    assert [len(plan.resets) for plan in done.plans] == [2, 0, 0, 0, 0, 0, 2, 0, 0]


def test_padding_computes_a_row_for_every_place_and_pads_prompts():
    """Padding comes before the prompt; an ended row's context grows on, and a token is chosen for it."""
    done = padded([make_request("a", range(5), max_tokens=2), make_request("b", range(9), max_tokens=6)])
    assert done.rows == [4 + 9, 5 + 1, 2, 2, 2, 2]
    assert done.padding == [4, 0, 0, 1, 1, 1]
    assert done.positions(0) == [[0, 1, 2, 3], [0, 1, 2, 3, 4], [5], [6], [7], [8]]
    assert [len(plan.out_rows) for plan in done.plans] == [1, 2, 2, 2, 2, 2]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=8),
    num_blocks=st.integers(11, 60),
    places=st.integers(1, 4),
)
def test_each_row_of_a_padded_batch_is_computed_to_its_end(sizes, num_blocks, places):
    """The rectangle of a naive server: each place computes the longest prompt, then a row a step until all have ended.

    A padded prompt is one step behind the longest. None is preempted, however few the blocks.
    """
    requests = [make_request(f"r{i}", range(n), seed=i, max_tokens=m) for i, (n, m) in enumerate(sizes)]
    done = padded(requests, num_blocks=num_blocks, max_num_seqs=places)
    assert done.preemptions == 0
    assert_same(run(requests).outcomes, done.outcomes)
    left, start = sizes, 0
    while left:
        members = left[: done.plans[start].num_seqs]
        left = left[len(members) :]
        longest = max(n for n, _ in members)
        steps = max(m + (n < longest) for n, m in members)
        for slot, (n, m) in zip(done.plans[start].seq_slots, members, strict=True):
            behind = n < longest
            rows = done.positions(slot)[start : start + steps]
            shape = [[*range(longest - n)], [*range(n)]] if behind else [[*range(n)]]
            decoded = rows[len(shape) :]
            assert rows[: len(shape)] == shape
            assert decoded[: m - 1] == [[n + i] for i in range(m - 1)]
            assert all(len(row) == 1 for row in decoded)
            last = longest + max(m for _, m in members) - 2
            assert [row[0] for row in decoded] == [min(n + i, last) for i in range(steps - len(shape))]
        start += steps
    assert start == len(done.plans)


def test_prompt_padding_is_chunked_like_a_prompt():
    requests = [make_request("a", range(2), max_tokens=30), make_request("b", range(40), max_tokens=30)]
    done = padded(requests, max_num_batched_tokens=16, long_prefill_token_threshold=7)
    lengths = [b - a for plan in done.plans for a, b in pairwise(plan.row_offsets)]
    assert max(lengths) == 7
    assert sum(done.padding[:7]) == 38


def test_padding_ends_chunks_where_prompts_do():
    requests = [make_request("a", range(9), max_tokens=9), make_request("b", range(22), max_tokens=9)]
    done = padded(requests, chunk_align=3, long_prefill_token_threshold=5)
    assert done.padding[:6] == [3, 3, 3, 3, 1, 0]
    assert [len(rows) for rows in done.positions(0)[:9]] == [3, 3, 3, 3, 1, 3, 3, 3, 1]


def test_an_ended_row_that_was_early_waits_at_the_end_of_the_batch():
    """It has blocks for the longest prompt and the longest answer, and no more."""
    requests = [make_request("a", range(12), max_tokens=4), make_request("b", range(12), seed=1, max_tokens=4)]
    done = padded(requests, num_blocks=8, max_num_batched_tokens=6, long_prefill_token_threshold=4)
    assert [rows[0] for rows in done.positions(0)[3:]] == [12, 13, *[14] * (len(done.plans) - 5)]
    assert max(plan.num_seqs for plan in done.plans) == 2


def test_held_places_leave_room_for_prompts():
    requests = [make_request("a", range(2), max_tokens=1), make_request("b", range(60), max_tokens=3)]
    done = padded(requests, max_num_batched_tokens=8)
    assert max(done.rows) == 8
    assert len(done.outcomes["b", 0].tokens) == 3


def test_a_padded_batch_has_blocks_for_the_longest_prompt_and_answer_in_each_row():
    """12 blocks of 4 hold a row of 20 + 4 tokens and one of 4 + 20; padded, each is 40 long, and only one fits."""
    requests = [make_request("a", range(20), max_tokens=4), make_request("b", range(4), seed=1, max_tokens=20)]
    skipped = run(requests, policy="static", num_blocks=12)
    done = padded(requests, num_blocks=12)
    assert [max(plan.num_seqs for plan in each.plans) for each in (skipped, done)] == [2, 1]
    assert_same(skipped.outcomes, done.outcomes)
    assert (done.preemptions, sum(done.padding)) == (0, 0)


def test_no_padded_row_goes_beyond_the_context():
    """Answers without a limit: a row of a long prompt stays at the end while that of a short one goes on."""
    requests = [make_request("a", range(30), max_tokens=None), make_request("b", range(4), seed=1, max_tokens=None)]
    done = padded(requests, max_position=36)
    assert max(plan.num_seqs for plan in done.plans) == 2
    assert [len(done.outcomes[name, 0].tokens) for name in "ab"] == [6, 32]
    assert [rows[0] for rows in done.positions(0)][-3:] == [34, 34, 34]


def test_nobody_joins_a_batch_under_way():
    late = {1: [lambda s: s.add(make_request("late", [1, 2], max_tokens=1, seed=9))]}
    done = run([make_request("early", [1], max_tokens=5)], late, policy="static", max_num_seqs=8)
    assert [[reset.seed for reset in plan.resets] for plan in done.plans] == [[0], [], [], [], [], [9]]


def test_a_batch_that_is_aborted_lets_the_next_one_in():
    requests = [make_request(f"r{i}", [i] * 30, seed=i, max_tokens=30) for i in range(4)]
    abort = [lambda s: s.abort("r0"), lambda s: s.abort("r1")]
    done = padded(requests, {2: abort}, max_num_seqs=2, long_prefill_token_threshold=9)
    assert [done.outcomes[f"r{i}", 0].finish for i in range(2)] == [FinishReason.ABORT] * 2
    assert len(done.plans[2].resets) == 2


@pytest.mark.parametrize("padding", [False, True])
def test_members_aborted_before_their_first_row_only_hold_their_place(padding):
    requests = [make_request(f"r{i}", [i] * 30, seed=i, max_tokens=4) for i in range(3)]
    done = run(
        requests,
        {1: [lambda s: s.abort("r1")]},
        policy="static",
        max_num_seqs=2,
        max_num_batched_tokens=4,
        static_padding=padding,
    )
    assert done.outcomes["r1", 0].tokens == []
    assert all(len(done.outcomes[f"r{i}", 0].tokens) == 4 for i in (0, 2))
    assert max(done.rows) <= 4


def test_a_batch_reserves_its_longest_answers_and_preempts_nobody():
    requests = [make_request(f"r{i}", [i] * 20, seed=i, max_tokens=100) for i in range(6)]
    done = run(requests, policy="static")
    assert done.preemptions == 0
    assert max(plan.num_seqs for plan in done.plans) == 2  # 64 blocks hold two sequences of 30 blocks
