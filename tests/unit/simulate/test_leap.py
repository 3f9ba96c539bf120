"""Leaping over steps that repeat one another gives the log that stepping gives."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.core.config import SchedulerConfig
from legato.simulate.traffic import Lengths, Visit, drawn
from support.simulated import replay, tiny_info

VISITS = st.lists(
    st.builds(
        Visit,
        at_s=st.floats(0, 0.3).map(lambda at_s: round(at_s, 4)),
        prompt_tokens=st.integers(1, 120),
        output_tokens=st.integers(1, 80),
        shared=st.sampled_from([(), (1,), (2,)]),
        shared_size=st.just(48),
        priority=st.integers(0, 2),
        tenant=st.sampled_from(["a", "b"]),
    ),
    max_size=14,
)


@settings(max_examples=80, deadline=None)
@given(
    visits=VISITS,
    num_blocks=st.integers(13, 40),
    policy=st.sampled_from(["fcfs", "static", "static, padded", "priority", "fair", "deadline"]),
    caching=st.booleans(),
)
def test_leaping_and_stepping_give_the_same_log(visits, num_blocks, policy, caching):
    """C11: also where blocks run out, sequences are preempted, and prefixes are found and evicted."""
    policy, _, padding = policy.partition(", ")
    config = SchedulerConfig(
        policy=policy,
        static_padding=bool(padding),
        enable_prefix_caching=caching,
        max_num_seqs=5,
        max_num_batched_tokens=32,
    )
    info = tiny_info(num_blocks=num_blocks, max_seqs=5)
    (stepped, steppers), (leapt, leapers) = (replay(visits, info, config, leap=leap) for leap in (False, True))
    assert leapt.lines == stepped.lines
    assert leapt.launches <= stepped.launches
    assert leapers[0].stats() == steppers[0].stats()
    assert leapers[0].stats().blocks_used == 0


def test_the_last_rows_of_prompts_and_the_decodes_after_them_are_one_launch():
    visits = [Visit(0.0, 20, 30), Visit(0.0, 30, 40), Visit(0.02, 40, 50)]
    config = SchedulerConfig(max_num_seqs=5, max_num_batched_tokens=64)
    log, _ = replay(visits, tiny_info(max_seqs=5), config, leap=True)
    assert log.launches == 4  # from the first two to the third; to each end
    assert len(log.lines) == 120


def test_counters_that_change_who_is_first_are_not_leapt_over():
    """Where the large request of one tenant waits for blocks, its neighbour's small one may become the first."""
    sizes = [("a", 200, 60), ("b", 100, 120), ("b", 200, 60), ("a", 100, 120), ("a", 40, 60), ("b", 20, 120)]
    visits = [Visit(i / 10_000, prompt, output, tenant=tenant) for i, (tenant, prompt, output) in enumerate(sizes)]
    config = SchedulerConfig(policy="fair", enable_prefix_caching=False, max_num_seqs=5, max_num_batched_tokens=64)
    info = tiny_info(num_blocks=26, max_seqs=5)
    stepped, leapt = (replay(visits, info, config, leap=leap)[0] for leap in (False, True))
    assert leapt.lines == stepped.lines


@pytest.mark.parametrize("rate", [20.0, 200.0])
def test_busy_replicas_leap(rate):
    """Over three replicas: each has the same log, and most steps are leapt over."""
    visits = list(drawn(300, rate, 0.5, Lengths(prompt=60, output=40, spread=0.6, longest_output=300, prefix=32), 3))
    visits = [visit for visit in visits if visit.prompt_tokens + visit.output_tokens < 500]
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64)
    stepped, leapt = (
        replay(visits, tiny_info(num_blocks=48), config, leap=leap, num_replicas=3)[0] for leap in (False, True)
    )
    assert sorted(leapt.lines) == sorted(stepped.lines)  # replicas report in turns that differ
    assert len(stepped.lines) == sum(visit.output_tokens for visit in visits)
    assert leapt.launches < stepped.launches / 2
