import numpy as np
import pytest
from levels import LEVELS, bf16_of, round_bf16
from sources import SOURCES, make_rows

from legato import _native

ops = _native.ops
WIDTHS = [1, 3, 16, 63, 64, 65, 100, 576, 1000]
FORMATS = ["f32", "bf16", "s8g32", "s8g64"]
every_level = pytest.mark.parametrize("isa", LEVELS)


def make_acts(isa, fmt, rows, k):
    """Activations whose memory is full of garbage."""
    acts = ops.Acts(fmt, rows, k, isa)
    for array in (acts.data, acts.scales, acts.sums):
        array[:] = 77
    return acts


def group_of(fmt):
    return int(fmt.removeprefix("s8g"))


def check_acts(acts, fmt, want, error):
    """`want` is float64 [rows, k]; `error` bounds what was lost before the conversion."""
    rows, k = want.shape
    padded = np.zeros(acts.data.shape)
    padded[:, :k] = want
    bound = np.broadcast_to(error, want.shape).max()
    if fmt == "f32":
        assert np.all(abs(acts.data - padded) <= bound)
    elif fmt == "bf16":
        assert np.all(abs(bf16_of(acts) - padded) <= 2**-8 * abs(padded) + bound)
    else:
        groups = padded.reshape(rows, -1, group_of(fmt))
        scales = abs(groups).max(axis=2) / 127
        np.testing.assert_allclose(acts.scales, scales, rtol=1e-6, atol=bound)
        values = acts.data.reshape(groups.shape) * acts.scales[:, :, None].astype(np.float64)
        assert np.all(abs(values - groups) <= 0.501 * scales[:, :, None] + bound)
        assert np.array_equal(acts.sums, acts.data.reshape(groups.shape).sum(axis=2, dtype=np.int32))
    assert not acts.data[:, k:].any()


@every_level
@pytest.mark.parametrize("dtype", SOURCES)
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_embed_is_exact(isa, dtype, scale):
    table, values = make_rows(dtype, 7, 96)
    tokens = np.array([3, 0, 6, 3, 1], np.int32)
    out = np.empty((5, 96), np.float32)
    ops.embed(isa, dtype, table, tokens, scale, out)
    assert np.array_equal(out, values[tokens] * np.float32(scale))


@every_level
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_embed_of_odd_width(isa, dtype):
    table, values = make_rows(dtype, 3, 33)
    out = np.empty((1, 33), np.float32)
    ops.embed(isa, dtype, table, np.array([2], np.int32), 1.0, out)
    assert np.array_equal(out[0], values[2])


@every_level
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("fmt", [*FORMATS, "out"])
@pytest.mark.parametrize(("layer", "bias"), [(False, False), (True, True), (True, False)])
def test_norm(isa, width, fmt, layer, bias):
    rng = np.random.default_rng(width)
    x = (rng.standard_normal((4, width)) * [[1], [1e-3], [100], [1]] + layer).astype(np.float32)
    weight = rng.standard_normal(width).astype(np.float32)
    shift = rng.standard_normal(width).astype(np.float32) if bias else None
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=1, keepdims=True) if layer else wide
    normed = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    want = normed * weight + (shift if bias else 0)
    lost = 1 + abs(wide).max() / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    error = 1e-6 * (abs(want) + abs(weight) * lost)
    if fmt == "out":
        out = np.full_like(x, np.nan)
        ops.norm(isa, x, weight, shift, layer, 1e-5, out=out)
        assert np.all(abs(out - want) <= error)
        return
    acts = make_acts(isa, fmt, 4, width)
    ops.norm(isa, x, weight, shift, layer, 1e-5, acts=acts)
    check_acts(acts, fmt, want, error)


@every_level
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("fmt", FORMATS)
def test_quantize(isa, width, fmt):
    rng = np.random.default_rng(width)
    x = (rng.standard_normal((5, width)) * [[1], [1e-3], [1e3], [0], [1]]).astype(np.float32)
    acts = make_acts(isa, fmt, 5, width)
    ops.quantize(isa, x, acts)
    check_acts(acts, fmt, x.astype(np.float64), 0.0)


@every_level
def test_a_row_is_the_same_alone_and_among_others(isa):
    x = np.random.default_rng(0).standard_normal((9, 300)).astype(np.float32)
    weight = np.ones(300, np.float32)
    crowd, alone = np.empty((9, 300), np.float32), np.empty((1, 300), np.float32)
    ops.norm(isa, x, weight, None, False, 1e-6, out=crowd)
    for r in range(9):
        ops.norm(isa, x[r : r + 1], weight, None, False, 1e-6, out=alone)
        assert np.array_equal(crowd[r], alone[0])


@every_level
def test_bf16_rounds_to_nearest_even(isa):
    upper = np.arange(0x0080, 0x7F80, dtype=np.uint32) << 16
    bits = (upper[:, None] | np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)).reshape(1, -1)
    x = np.concatenate([bits, bits | 0x80000000], axis=1).view(np.float32)
    acts = make_acts(isa, "bf16", 1, x.shape[1])
    ops.quantize(isa, x, acts)
    assert np.array_equal(bf16_of(acts)[0, : x.shape[1]], round_bf16(x[0]))


@every_level
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 31, 70, 99])
def test_a_fault_survives_conversion(isa, fmt, value, at):
    x = np.ones((3, 100), np.float32)
    x[1, at] = value
    acts = make_acts(isa, fmt, 3, 100)
    ops.quantize(isa, x, acts)
    if fmt.startswith("s8"):
        group = at // group_of(fmt)
        assert np.isnan(acts.scales[1, group])
        assert np.isfinite(np.delete(acts.scales, 1, axis=0)).all()
        assert np.isnan(acts.scales).sum() == 1
        assert not acts.data[1].reshape(-1, group_of(fmt))[group].any()
    else:
        values = acts.data if fmt == "f32" else bf16_of(acts)
        np.testing.assert_array_equal(values[:, :100], x)


@every_level
@pytest.mark.parametrize("width", [1, 5, 16, 33])
def test_find_faults(isa, width):
    x = np.zeros((2 * width + 1, width), np.float32)
    for i in range(width):
        x[2 * i, i] = [np.nan, np.inf, -np.inf][i % 3]
        x[2 * i + 1, i] = np.finfo(np.float32).max
    faults = np.full(len(x), 7, np.uint8)
    ops.find_faults(isa, x, faults)
    assert faults.tolist() == [1, 0] * width + [0]


def test_an_unknown_level_is_refused_by_name():
    with pytest.raises(ValueError, match="sse9"):
        ops.find_faults("sse9", np.zeros((1, 1), np.float32), np.zeros(1, np.uint8))
