"""The simulated executor and its roofline."""

from array import array
from dataclasses import replace

import pytest

from legato.core.config import CacheConfig, SchedulerConfig
from legato.core.errors import ConfigError
from legato.core.types import StepPlan
from legato.executor.roofline import AttentionCost, Experts, Numbers, Roofline
from legato.executor.simulated import SimulatedExecutor, VirtualClock, simulated_info
from support.driving import drive, make_request, scheduler_for
from support.simulated import HARDWARE, MODEL, tiny_info

BF16 = Numbers("bf16", 2.0, 2.0)


def plan_of(*spans: tuple[int, int], step_id: int = 0) -> StepPlan:
    """One sequence per (first position, end); each gives a token."""
    offsets, positions = [0], array("i")
    for first, end in spans:
        positions.extend(range(first, end))
        offsets.append(len(positions))
    rows = array("i", [offset - 1 for offset in offsets[1:]])
    none, slots = array("i"), array("i", range(len(spans)))
    return StepPlan(
        step_id, positions, positions, (), none, array("i", offsets), slots, (), none, rows,
        array("b", bytes(len(rows))), slots, none,
    )  # fmt: skip


def executor(cost: Roofline) -> SimulatedExecutor:
    return SimulatedExecutor(tiny_info(), cost, VirtualClock())


def test_a_decode_step_reads_weights_and_cache():
    cost = Roofline(MODEL, HARDWARE, BF16)
    weights = (MODEL.params + MODEL.head) * 2 / (1e9 * 0.8)
    cache = (100 + 200) * 2 * 64 * 2 / (1e9 * 0.5)
    vector = 2 * 2 * 64 / 1e8
    arithmetic = 2 * 2 * (MODEL.params + MODEL.head) / 5e8  # two rows are more than the weights cost here
    expected = max(weights, arithmetic) + cache + vector + 1e-4 + 2e-6
    assert cost.step_s(plan_of((99, 100), (199, 200))) == pytest.approx(expected)


def test_a_prefill_is_arithmetic():
    cost = Roofline(MODEL, HARDWARE, BF16)
    linear = 2 * 64 * MODEL.params / 5e8 + 2 * MODEL.head / 5e8
    attended = sum(range(33, 97))
    attention = 2 * max(attended * 64 / 5e8, 96 * 64 * 2 / 5e8)
    expected = linear + attention + 64 * 2 * 64 / 1e8 + 1e-4 + 1e-6
    assert cost.step_s(plan_of((32, 96))) == pytest.approx(expected)


def test_what_does_not_overlap_is_added():
    """Of a linear layer and of the head; the parts of a step are all of it."""
    plan, rows = plan_of((99, 100), (199, 200)), 2
    hidden, half, added = (Roofline(MODEL, replace(HARDWARE, overlap=share), BF16) for share in (1.0, 0.5, 0.0))
    for size, outputs in ((MODEL.params, 0), (MODEL.params + MODEL.head, rows)):
        read, arithmetic = size * 2 / (1e9 * 0.8), 2 * rows * size / 5e8
        assert hidden.linear_s(rows, outputs) == pytest.approx(arithmetic)
        assert half.linear_s(rows, outputs) == pytest.approx(arithmetic + read / 2)
        assert added.linear_s(rows, outputs) == pytest.approx(arithmetic + read)
    assert added.step_s(plan) == pytest.approx(added.linear_s(2, 2) + added.attention_s(plan) + added.rest_s(2, 2))


def test_devices_share_the_work_and_pay_for_it():
    free = replace(HARDWARE, link=1e30, link_s=0.0, step_s=0.0, sequence_s=0.0)
    one, two, four = (Roofline(MODEL, free, replace(BF16, devices=n)).step_s(plan_of((300, 301))) for n in (1, 2, 4))
    assert two == pytest.approx(one / 2)
    assert one / 4 < four < two  # there are two KV heads: four devices read the cache no faster than two
    slow = Roofline(MODEL, HARDWARE, replace(BF16, devices=2)).step_s(plan_of((300, 301)))
    moved = 2 * 1 / 2 * 64 * 2
    assert slow == pytest.approx(two + 1e-4 + 1e-6 + 4 * (moved / 1e9 + 1e-5))


def test_a_window_bounds_what_attention_costs():
    windowed = replace(MODEL, attention=(AttentionCost("window", 16, 2, 2, 64, 64),))
    cost = Roofline(windowed, HARDWARE, BF16)
    assert cost.step_s(plan_of((299, 300))) == cost.step_s(plan_of((199, 200)))
    assert cost.step_s(plan_of((200, 300))) == cost.step_s(plan_of((100, 200)))
    assert cost.step_s(plan_of((7, 8))) == Roofline(MODEL, HARDWARE, BF16).step_s(plan_of((7, 8)))
    assert not executor(cost).leaps


def test_a_batch_touches_more_experts_than_a_row():
    sparse = replace(MODEL, params=0, head=0, experts=(Experts(8, 2, 50_000),), attention=())
    fast = replace(HARDWARE, flops={"bf16": 1e15}, vector=1e15, step_s=0.0, sequence_s=0.0)
    cost = Roofline(sparse, fast, BF16)
    read = [cost.step_s(plan_of(*[(5, 6)] * rows)) * 8e8 / 2 / 50_000 for rows in (1, 2, 64)]
    assert read == pytest.approx([2, 3.5, 8], rel=1e-3)


def test_many_steps_end_when_single_ones_do():
    """To the last bit: the sum is made in the same order."""
    many, single = executor(Roofline(MODEL, HARDWARE, BF16)), executor(Roofline(MODEL, HARDWARE, BF16))
    many.launch_steady(plan_of((9, 10), (30, 31)), 40)
    ends, tokens = list(many.ends_s), many.collect_steady(0)
    for index in range(40):
        single.launch(plan_of((9 + index, 10 + index), (30 + index, 31 + index), step_id=index))
        assert single.ends_s == [ends[index]]
        assert list(single.collect(index).tokens) == [made[index] for made in tokens]


def test_a_cut_launch_ends_with_the_step_under_way():
    cut = executor(Roofline(MODEL, HARDWARE, BF16))
    cut.launch_steady(plan_of((9, 10)), 10)
    ends = list(cut.ends_s)
    cut.cut(ends[5])
    cut.cut(ends[3] + 1e-9)
    assert cut.ends_s == ends[:5]
    assert len(cut.collect_steady(0)[0]) == 5


def test_one_launch_at_a_time():
    busy = executor(Roofline(MODEL, HARDWARE, BF16))
    busy.launch(plan_of((0, 1)))
    with pytest.raises(RuntimeError, match="in flight"):
        busy.launch(plan_of((0, 1)))
    with pytest.raises(RuntimeError, match="step 3 is not in flight"):
        busy.collect(3)
    busy.close()
    with pytest.raises(ConfigError, match="adapters"):
        busy.load_adapter(0, "a")


def test_it_is_an_executor_like_others():
    """Under the driver of all scheduler tests; requests made of tokens that are read back are the same again."""
    simulated = executor(Roofline(MODEL, HARDWARE, BF16))
    requests = [make_request(str(i), range(3, 40 + i), max_tokens=20) for i in range(12)]
    outcomes = drive(scheduler_for(simulated, max_num_seqs=4, max_num_batched_tokens=32), simulated, requests)
    assert all(len(outcome.tokens) == 20 and outcome.error is None for outcome in outcomes.values())
    assert all(3 <= token < MODEL.vocab for outcome in outcomes.values() for token in outcome.tokens)


def test_memory_is_divided_as_on_a_real_machine():
    cache, scheduler = CacheConfig(memory_utilization=0.5), SchedulerConfig(max_num_seqs=1000)
    hardware = replace(HARDWARE, memory=10 << 20)
    info, memory = simulated_info(MODEL, hardware, replace(BF16, devices=4), cache, scheduler)
    assert info.cache_groups[0].bytes_per_block == 64 * 2 * 16 * 2 // 2  # two KV heads, over four devices
    assert (
        info.num_blocks == (int((10 << 20) * 0.5) - sum(memory.parts.values())) // info.cache_groups[0].bytes_per_block
    )
    assert memory.parts["weights"] == MODEL.total * 2 // 4


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="format: slow has no figure for fp8"):
        Roofline(MODEL, HARDWARE, Numbers("fp8", 1.0, 1.0))
    with pytest.raises(ConfigError, match="tp: 8 is not between 1 and the 4 of slow"):
        Roofline(MODEL, HARDWARE, replace(BF16, devices=8))
    with pytest.raises(ConfigError, match="not enough memory"):
        simulated_info(MODEL, replace(HARDWARE, memory=1 << 18), BF16, CacheConfig(), SchedulerConfig())
    with pytest.raises(ConfigError, match="max_model_len 513"):
        simulated_info(MODEL, HARDWARE, BF16, CacheConfig(), SchedulerConfig(), 513)
