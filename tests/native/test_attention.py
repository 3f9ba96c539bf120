import numpy as np
import pytest
from kv_layout import CODED, DTYPES, unpack
from levels import LEVELS, WIDTHS, bf16_of, round_bf16

from legato import _native

ops = _native.ops


class Case:
    """One sequence of `length` positions in a cache that is full of NaN (bytes of `fill`) wherever nothing was written.

    The first `freed` positions' blocks are given back: their table entries are -1. values: of every q, K and V, instead
    of random ones.
    """

    def __init__(
        self, isa, dtype, length, *, heads, kv_heads, head_dim, block_size=16, freed=0, seed=0, fill=0xFF, values=None
    ):
        rng = np.random.default_rng(seed)
        self.isa, self.dtype, self.heads, self.kv_heads, self.head_dim = isa, dtype, heads, kv_heads, head_dim
        blocks = -(-length // block_size)
        self.cache = ops.KvCache(dtype, blocks + 3, block_size, kv_heads, head_dim)
        self.cache.data[:] = fill
        width = (heads + 2 * kv_heads) * head_dim
        self.x = rng.standard_normal((length, width), dtype=np.float32)
        self.x[:, : heads * head_dim] *= 3.0
        if values is not None:
            self.x[:] = np.repeat(values, [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim])
        self.table = (rng.permutation(blocks + 2)[:blocks] + 1).astype(np.int32)
        self.positions = np.arange(length, dtype=np.int32)
        slots = self.table[self.positions // block_size].astype(np.int64) * block_size + self.positions % block_size
        self.q = np.empty((length, heads * head_dim), np.float32)
        ops.heads_to_cache(isa, self.cache, self.x, heads, None, None, 0.0, None, self.positions, slots, self.q)
        k, v, _, scales = unpack(self.cache.data, dtype, kv_heads, head_dim, block_size)
        k, v = k[..., :head_dim], v[..., :head_dim]
        self.cached = [a[:, slots].swapaxes(0, 1).astype(np.float64) for a in (k, v, scales)]
        self.table[: freed // block_size] = -1

    def run(self, rows, *, window=0, acts=None, **cut):
        rows = np.asarray(rows)
        out = np.full((len(rows), self.q.shape[1]), np.nan, np.float32) if acts is None else None
        ops.attention(
            self.isa,
            self.cache,
            self.q[rows],
            self.heads,
            self.head_dim**-0.5,
            window,
            self.positions[rows],
            self.table,
            acts,
            out,
            **cut,
        )
        return out

    def expect(self, row, *, window=0):
        """The exact result over what is cached in float64, and a bound of the kernel's error from the same data."""
        group, dim = self.heads // self.kv_heads, self.head_dim
        first = max(0, row - window + 1) if window else 0
        q = self.x[row : row + 1, : self.heads * dim]
        if self.dtype in ("bf16", "fp8"):
            q = round_bf16(q)
        q = q.reshape(1, self.heads, dim).astype(np.float64)
        k, v, scales = (np.repeat(a[first : row + 1], group, axis=1) for a in self.cached)
        scores = np.einsum("hd,phd->hp", q[0], k) * dim**-0.5
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        out = np.einsum("hp,phd->hd", p, v)
        score_error = 2**-22 * np.einsum("hd,phd->hp", abs(q[0]), abs(k)).max(axis=1)
        weight_error = 2**-8 if self.dtype in ("bf16", "fp8") else 2**-20
        fixed_error = 0.0
        if self.dtype == "int8":  # queries and probabilities in steps of their largest / 32639
            score_error += 2**-16 * dim**-0.5 * (abs(q[0]).max(axis=1) * abs(k).sum(axis=2)).max(axis=0)
            largest = (p * scales.T).max(axis=1)
            fixed_error = 2**-16 * largest[:, None] * (abs(v) / np.maximum(scales, 1e-30)[..., None]).sum(axis=0)
        bound = (2 * score_error + weight_error)[:, None] * np.einsum("hp,phd->hd", p, abs(v)) + fixed_error
        return out.ravel(), bound.ravel()


def check(case, rows, out, **options):
    for row, values in zip(rows, out, strict=True):
        want, bound = case.expect(row, **options)
        assert np.all(abs(values - want) <= bound + 1e-7), row


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(9, 3, 64), (4, 1, 128), (2, 2, 80), (8, 1, 2), (7, 1, 34), (12, 2, 96), (1, 1, 256)],
)
def test_prefill_and_decode_equal_the_definition(isa, dtype, heads, kv_heads, head_dim):
    case = Case(isa, dtype, 291, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    rows = [*range(34), 100, 250, 254, 255, 256, 257, 270, 271, 272, 290]
    check(case, rows, case.run(rows))


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 100, 256, 300])
def test_window_edges(isa, dtype, window):
    case = Case(isa, dtype, 560, heads=6, kv_heads=2, head_dim=64)
    rows = [0, 1, 15, 16, 17, 255, 256, 257, 299, 300, 301, 511, 512, 530, 559]
    check(case, rows, case.run(rows, window=window), window=window)


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_freed_blocks_behind_a_window_are_not_read(isa, dtype, block_size):
    case = Case(isa, dtype, 600, heads=2, kv_heads=1, head_dim=32, freed=500 - 40 + 1, block_size=block_size)
    rows = range(500, 600)
    check(case, rows, case.run(rows, window=40), window=40)


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (8, 2, 40), (5, 1, 128), (2, 2, 64)])
@pytest.mark.parametrize("window", [0, 70])
def test_same_bits_however_it_is_cut(isa, dtype, heads, kv_heads, head_dim, window):
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    whole = Case(isa, dtype, 700, **shape)
    rows = np.r_[0:40, 240:280, 500:530, 690:700]
    want = whole.run(rows, window=window, rows_per_item=1)
    for rows_per_item, splits_per_item in [(16, 0), (7, 0), (2, 1), (16, 1), (5, 2), (3, 100)]:
        got = whole.run(rows, window=window, rows_per_item=rows_per_item, splits_per_item=splits_per_item)
        assert np.array_equal(want.view(np.uint32), got.view(np.uint32)), (rows_per_item, splits_per_item)
    for block_size in (32, 64):
        got = Case(isa, dtype, 700, block_size=block_size, **shape).run(rows, window=window)
        assert np.array_equal(want.view(np.uint32), got.view(np.uint32)), block_size


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_later_row_with_nan_does_not_reach_an_earlier_one(isa, dtype):
    length = 45
    clean = Case(isa, dtype, length, heads=4, kv_heads=2, head_dim=64)
    dirty = Case(isa, dtype, length, heads=4, kv_heads=2, head_dim=64)
    x = clean.x[40:].copy()
    x[3] = np.nan
    slots = (dirty.table[2].astype(np.int64) * 16 + np.arange(8, 13)).astype(np.int64)
    ops.heads_to_cache(
        isa, dirty.cache, x, 4, None, None, 0.0, None, dirty.positions[40:], slots, np.empty((5, 256), np.float32)
    )
    want, got = clean.run(range(30, length)), dirty.run(range(30, length))
    assert np.array_equal(want[:13], got[:13])
    assert np.isnan(got[13:]).all()


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_fault_in_q_stays_in_its_row(isa, dtype, value):
    case = Case(isa, dtype, 40, heads=4, kv_heads=2, head_dim=64)
    want = case.run(range(20, 40))
    case.q[25, 3] = value
    got = case.run(range(20, 40))
    assert np.isnan(got[5, :64]).all()
    assert np.array_equal(np.delete(want, 5, axis=0), np.delete(got, 5, axis=0))


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize(
    ("fmt", "head_dim"), [("f32", 64), ("bf16", 64), ("s8g32", 64), ("s8g64", 64), ("bf16", 20), ("s8g32", 96)]
)
@pytest.mark.parametrize("splits_per_item", [0, 1])
@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_output_formats_equal_the_conversion_of_the_output(isa, fmt, head_dim, splits_per_item, dtype):
    case = Case(isa, dtype, 300, heads=3, kv_heads=1, head_dim=head_dim)
    rows = range(280, 300)
    acts, want = (ops.Acts(fmt, len(rows), 3 * head_dim, isa) for _ in range(2))
    for array in (acts.data, acts.scales, acts.sums):
        array[:] = 77
    case.run(rows, acts=acts, splits_per_item=splits_per_item)
    ops.quantize(isa, case.run(rows), want)
    for name in ("data", "scales", "sums"):
        assert np.array_equal(getattr(acts, name), getattr(want, name)), name
    if fmt == "bf16":
        assert np.array_equal(bf16_of(acts)[:, : 3 * head_dim], round_bf16(case.run(rows)))


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("dtype", CODED)
@pytest.mark.parametrize("window", [0, 20])
def test_stale_codes_and_scales_reach_no_row(isa, dtype, window):
    """Largest and smallest codes, and scales that are NaN or huge, behind the rows and before a window."""
    shape = {"heads": 3, "kv_heads": 1, "head_dim": 48}
    want = Case(isa, dtype, 37, fill=0, **shape).run(range(37), window=window)
    for fill in (0x7F, 0x80, 0xFE, 0xFF):
        assert np.array_equal(want, Case(isa, dtype, 37, fill=fill, **shape).run(range(37), window=window))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("width", WIDTHS)
def test_all_levels_of_a_width_give_the_same_bits(width, dtype, window):
    rows = [*range(0, 560, 7), *range(540, 560)]
    cases = [Case(isa, dtype, 560, heads=6, kv_heads=2, head_dim=80) for isa in WIDTHS[width]]
    assert len({case.run(rows, window=window).tobytes() for case in cases}) <= 1
    assert len({case.cache.data.tobytes() for case in cases}) <= 1


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("values", [(1, 1, 1), (-1, 1, -1), (2, -3, 5), (-1, -1, 0)], ids=str)
def test_sums_of_the_largest_codes_do_not_overflow(isa, dtype, values):
    case = Case(isa, dtype, 520, heads=2, kv_heads=1, head_dim=512, values=values)
    rows = [0, 17, 255, 256, 519]
    check(case, rows, case.run(rows))
    np.testing.assert_allclose(case.run(rows), values[2], rtol=2**-7)
