"""The plan runner against the reference: logits, sampling, faults, blocks; several models; calls out of order."""

from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from levels import LEVELS, WIDTHS

import legato._native as native
from legato.bench.machine import default_level
from legato.build.lower import lower
from legato.core.errors import CheckpointError, ConfigError
from legato.core.types import NO_BLOCK, BlockCopy, BlockTable, StepPlan
from legato.executor.native import NativeExecutor
from legato.executor.reference import ReferenceExecutor
from legato.models import find
from support.drive import GREEDY, greedy, logits, run, step
from support.tiny_engines import open_native, tiny_engine, write_tiny
from support.tiny_models import MemorySource, tiny_config, tiny_source

TOKENS = [int(t) for t in np.random.RandomState(5).randint(0, 80, 50)]

# Family, checkpoint dtype, asked format, and the bound of the root mean square error relative to the deviation of the
# logits. The models are small and steep, so that rounding of activations (bf16, int8) is amplified about 20 times.
CASES = {
    "fp32": ("llama", "F32", "auto", 1e-4),
    "fp32 biases": ("qwen2", "F32", "auto", 1e-4),
    "fp32 head norms": ("qwen3", "F32", "auto", 1e-4),
    "fp32 layers without rope": ("smollm3", "F32", "auto", 1e-4),
    "fp32 window": ("mistral", "F32", "auto", 1e-4),
    "f16": ("llama", "F16", "auto", 0.03),
    "bf16": ("llama", "BF16", "auto", 0.05),
    "q8_0": ("llama", "Q8_0", "auto", 0.1),
    "q4_0": ("llama", "Q4_0", "auto", 0.1),
    "q4_1": ("llama", "Q4_1", "auto", 0.1),
    "int8": ("llama", "F32", "int8", 0.15),
    "int8 biases": ("qwen2", "BF16", "int8", 0.15),
    "int4": ("llama", "int4", "int4", 0.12),
}


def source_of(family: str, dtype: str, **changes: Any) -> MemorySource:
    """A checkpoint of this dtype; "int4": of the numbers that our own 4-bit quantizer makes."""
    if family == "mistral":
        changes.setdefault("sliding_window", 9)
    source = tiny_source(tiny_config(family, **changes), dtype=lambda name: "F32" if dtype == "int4" else dtype)
    if dtype == "int4":
        for name, values in source.arrays.items():
            if name.endswith("proj.weight"):
                source.arrays[name] = rounded_to_int4(values)
    return source


def rounded_to_int4(values: np.ndarray) -> np.ndarray:
    weight = native.describe_weight("i4", *values.shape, 16)
    packed, out = np.empty(weight.bytes, np.uint8), np.empty(values.shape, np.float32)
    native.pack_weight(weight, [("F32", values.view(np.uint8))], packed)
    native.unpack_columns(weight, packed, 0, out)
    return out


def reference_of(source: MemorySource, **sizes: int) -> ReferenceExecutor:
    plan = lower(find(source.config, "config.json"), source)
    sizes = {"block_size": 16, "num_blocks": 60, "max_rows": 64, "max_seqs": 64} | sizes
    return ReferenceExecutor(plan, source, **sizes)


@pytest.fixture(scope="module")
def reference_logits() -> Callable[[str, str], np.ndarray]:
    known: dict[tuple[str, str], np.ndarray] = {}

    def get(family: str, dtype: str) -> np.ndarray:
        if (family, dtype) not in known:
            known[family, dtype] = logits(reference_of(source_of(family, dtype)), TOKENS)
        return known[family, dtype]

    return get


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_reference(case: str, isa: str, tmp_path: Path, reference_logits: Any) -> None:
    family, dtype, format, tolerance = CASES[case]
    expected = reference_logits(family, dtype)
    assert expected.std() > 1
    stored = "F32" if dtype == "int4" else dtype  # the packer makes int4 of it, the reference has what that stands for
    path = write_tiny(tmp_path / "tiny.legato", source_of(family, stored), format=format)
    got = logits(open_native(path, isa=isa, threads=2), TOKENS)
    error = np.abs(got - expected) / expected.std()
    assert np.sqrt((error**2).mean()) <= tolerance
    assert error.max() <= 10 * tolerance


# Bounds of the same error, of a cache in few bits under fp32 weights.
KV_DTYPES = {"fp32": 1e-4, "bf16": 0.05, "int8": 0.06, "fp8": 0.35}


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("kv_cache_dtype", KV_DTYPES)
def test_kv_dtypes_are_near_the_reference(kv_cache_dtype: str, isa: str, tmp_path: Path, reference_logits: Any) -> None:
    expected, tolerance = reference_logits("llama", "F32"), KV_DTYPES[kv_cache_dtype]
    path = write_tiny(tmp_path / "tiny.legato", source_of("llama", "F32"))
    executor = open_native(path, isa=isa, threads=2, kv_cache_dtype=kv_cache_dtype)
    assert executor.info().details["kv_cache_dtype"] == kv_cache_dtype
    error = logits(executor, TOKENS) - expected
    assert 1e-9 < np.sqrt((error**2).mean()) / expected.std() <= tolerance


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8", "fp8"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("width", WIDTHS)
def test_all_levels_of_a_width_give_the_same_bits(width: str, case: str, kv_cache_dtype: str, tmp_path: Path) -> None:
    """So the fastest may be chosen on each CPU: vdpbf16ps is not, where two FMAs take less time."""
    family, dtype, format, _ = CASES[case]
    path = write_tiny(tmp_path / "tiny.legato", source_of(family, dtype), format=format)
    levels = [open_native(path, isa=isa, threads=2, kv_cache_dtype=kv_cache_dtype) for isa in WIDTHS[width]]
    assert len({logits(level, TOKENS).tobytes() for level in levels}) <= 1


@pytest.fixture
def tiny(tmp_path: Path) -> NativeExecutor:
    return open_native(tiny_engine(tmp_path / "tiny.legato"), threads=2)


def test_a_nan_harms_its_own_row_only(tmp_path: Path) -> None:
    source = source_of("llama", "F32")
    source.arrays["model.embed_tokens.weight"][11] = np.nan
    source.arrays["model.embed_tokens.weight"][12] = 3e38
    executor = open_native(write_tiny(tmp_path / "nan.legato", source, format="int8"))
    alone = run(executor, step(executor.info(), [1], 0, reset=GREEDY)).tokens[0]
    sick = step(executor.info(), [3, 11], 0, reset=replace(GREEDY, slot=1), part=(30, 30))
    both = joined(step(executor.info(), [1], 0, part=(0, 30)), sick)
    result = run(executor, both)
    assert list(result.faults) == [0, 0, 1]
    assert result.tokens[0] == alone
    assert result.tokens[2] == -1


@pytest.mark.parametrize("kv_cache_dtype", KV_DTYPES)
def test_stale_nans_in_a_block_are_not_read(tmp_path: Path, kv_cache_dtype: str) -> None:
    source = source_of("llama", "F32")
    source.arrays["model.embed_tokens.weight"][11] = np.nan
    executor = open_native(write_tiny(tmp_path / "nan.legato", source), kv_cache_dtype=kv_cache_dtype)
    clean = logits(executor, TOKENS[:20])
    run(executor, step(executor.info(), [11] * 48, 0, reset=GREEDY))
    np.testing.assert_array_equal(logits(executor, TOKENS[:20]), clean)


def joined(first: StepPlan, second: StepPlan) -> StepPlan:
    """Two sequences in one step, in sequence slots 0 and 1."""
    n, blocks = first.num_rows, len(first.block_tables[0].blocks)
    table = BlockTable(
        array("i", [0, blocks, blocks + len(second.block_tables[0].blocks)]),
        first.block_tables[0].blocks + second.block_tables[0].blocks,
    )
    return replace(
        first,
        tokens=first.tokens + second.tokens,
        positions=first.positions + second.positions,
        kv_slots=(first.kv_slots[0] + second.kv_slots[0],),
        row_offsets=array("i", [0, n, n + second.num_rows]),
        seq_slots=array("i", [0, 1]),
        block_tables=(table,),
        out_rows=first.out_rows + array("i", (row + n for row in second.out_rows)),
        out_purposes=first.out_purposes + second.out_purposes,
        out_params=first.out_params + array("i", [1] * len(second.out_rows)),
        resets=first.resets + second.resets,
    )


def test_out_of_order_calls_are_refused(tiny: NativeExecutor) -> None:
    plan = step(tiny.info(), [1], 0, step_id=4, reset=GREEDY)
    with pytest.raises(RuntimeError, match="step 4 was not launched"):
        tiny.collect(4)
    tiny.launch(plan)
    for call in (lambda: tiny.launch(plan), lambda: tiny.logits, tiny.profile):
        with pytest.raises(RuntimeError, match="a step is in flight: collect it first"):
            call()
    with pytest.raises(RuntimeError, match="step 5 was not launched"):
        tiny.collect(5)
    assert tiny.collect(4).step_id == 4
    tiny.launch(plan)
    tiny.close()  # waits for it
    tiny.close()
    with pytest.raises(RuntimeError, match="closed"):
        tiny.collect(4)


def test_a_step_keeps_its_columns_alive(tiny: NativeExecutor) -> None:
    plan = step(tiny.info(), TOKENS, 0, outputs=[49], reset=GREEDY)
    tiny.launch(plan)
    with pytest.raises(BufferError):
        plan.tokens.append(1)
    del plan
    assert tiny.collect(0).tokens[0] >= 0


@pytest.mark.parametrize("kv_cache_dtype", KV_DTYPES)
def test_copied_blocks_hold_what_their_sources_hold(tmp_path: Path, kv_cache_dtype: str) -> None:
    tiny = open_native(tiny_engine(tmp_path / "tiny.legato"), kv_cache_dtype=kv_cache_dtype)
    expected = logits(tiny, TOKENS)
    plan = step(tiny.info(), TOKENS[-1:], len(TOKENS) - 1)
    blocks = plan.block_tables[0].blocks
    moved = array("i", (40 + i for i in range(len(blocks))))
    copies = tuple(BlockCopy(0, 0, source, 0, target) for source, target in zip(blocks, moved, strict=True))
    slots = array("q", [moved[-1] * 16 + (len(TOKENS) - 1) % 16])
    tables = (BlockTable(plan.block_tables[0].offsets, moved),)
    run(tiny, replace(plan, copies=copies, block_tables=tables, kv_slots=(slots,)))
    np.testing.assert_array_equal(tiny.logits[0], expected[-1])


def test_blocks_behind_the_window_may_be_gone(tmp_path: Path) -> None:
    executor = open_native(write_tiny(tmp_path / "window.legato", source_of("mistral", "F32")))
    expected = logits(executor, TOKENS)[-1]
    plan = step(executor.info(), TOKENS[-1:], len(TOKENS) - 1)
    offsets, blocks = plan.block_tables[0].offsets, plan.block_tables[0].blocks
    freed = array("i", [NO_BLOCK, NO_BLOCK]) + blocks[2:]  # the last 9 positions are in blocks 2 and 3
    run(executor, replace(plan, block_tables=(BlockTable(offsets, freed),)))
    np.testing.assert_array_equal(executor.logits[0], expected)


def test_several_models_live_in_one_process(tmp_path: Path) -> None:
    paths = [tiny_engine(tmp_path / f"{kind}.legato", kind) for kind in ("llama", "qwen3")]
    executors = [open_native(path, threads=2) for path in paths]
    alone = [greedy(executor, TOKENS[:9], 8) for executor in executors]
    assert alone[0] != alone[1]
    plans = [step(executor.info(), TOKENS[:9], 0, outputs=[8], reset=GREEDY) for executor in executors]
    for executor, plan in zip(executors, plans, strict=True):
        executor.launch(plan)
    assert [executor.collect(0).tokens[0] for executor in executors] == [tokens[0] for tokens in alone]


def test_info_and_profile(tmp_path: Path) -> None:
    executor = open_native(tiny_engine(tmp_path / "tiny.legato", dtype=lambda name: "Q8_0"), threads=2)
    info = executor.info()
    assert info.cache_groups[0].bytes_per_block == 3 * 2 * 2 * 16 * 16 * 2  # layers, K and V, heads, slots, dim, bf16
    assert info.details["weights"] == "q8_0"
    assert info.details["threads"] == "2"
    assert info.details["isa"] == default_level()
    result = run(executor, step(info, TOKENS, 0, outputs=[49], reset=GREEDY))
    assert set(result.times_ms) == {"prepare", "forward", "sample"}
    profile = executor.profile(reset=True)
    assert (profile["steps"], profile["rows"]) == (1, 50)
    assert profile["linear"] > 0
    assert executor.profile()["steps"] == 0
    with pytest.raises(ConfigError, match="not built yet"):
        executor.load_adapter(0, "x")


@pytest.mark.parametrize(
    ("kv_cache_dtype", "tile_bytes"),
    [("fp32", 2 * 1024), ("bf16", 2 * 512), ("int8", 2 * 256 + 64), ("fp8", 2 * 256 + 64)],
)
def test_bytes_per_block_count_the_scales(tmp_path: Path, kv_cache_dtype: str, tile_bytes: int) -> None:
    path = tiny_engine(tmp_path / "tiny.legato")
    executor = open_native(path, kv_cache_dtype=kv_cache_dtype, block_size=32)
    [group] = executor.info().cache_groups
    assert group.bytes_per_block == 3 * 2 * 2 * tile_bytes  # layers, heads, tiles, K and V of 16 slots and dimensions
    assert executor.memory.pool == 60 * group.bytes_per_block


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"isa": "sse9"}, "sse9"),
        ({"num_blocks": 1 << 30}, "not enough memory|num_blocks"),
        ({"max_rows": 1 << 21}, "max_rows"),
        ({"threads": 5000}, "threads"),
    ],
)
def test_settings_that_cannot_work_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tiny_engine(tmp_path / "tiny.legato")
    with pytest.raises(ConfigError, match=message):
        open_native(path, **changes)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tiny_engine(tmp_path / "tiny.legato")
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(CheckpointError, match=r"tiny\.legato"):
        open_native(path)


def test_narrow_heads_with_wide_groups(tmp_path: Path) -> None:
    """head_dim 48 is no multiple of the 32 or 64 values of an activation group."""
    source = source_of("llama", "F32", head_dim=48)
    expected = logits(reference_of(source), TOKENS)
    executor = open_native(write_tiny(tmp_path / "tiny.legato", source, format="int8"), threads=2)
    error = logits(executor, TOKENS) - expected
    assert np.sqrt((error**2).mean()) <= 0.15 * expected.std()
