from math import erfc

import numpy as np
import pytest
from levels import LEVELS, bf16_of, put_bf16, round_bf16
from sources import make_rows

from legato import _native
from legato._native import ops

EPS = 2.0**-24

# name: (source dtype, packed type, layout options, activation format)
FORMATS = {
    "f32": ("F32", "f32", {}, "f32"),
    "f16": ("F16", "f16", {}, "f32"),
    "bf16": ("BF16", "bf16", {}, "bf16"),
    "i8": ("F32", "i8", {}, "s8g64"),
    "i8/32": ("F32", "i8", {}, "s8g32"),
    "q8_0": ("Q8_0", "i8", {"group": 32}, "s8g32"),
    "q4_0": ("Q4_0", "q4", {"group": 32, "zero": 8}, "s8g32"),
    "q4_1": ("Q4_1", "q4", {"group": 32, "has_min": True}, "s8g32"),
    "int4": ("F32", "i4", {"group": 16}, "s8g64"),
    "int4/32": ("Q8_0", "i4", {"group": 16}, "s8g32"),
}
SHAPES = [(1, 1, 128), (13, 70, 256), (8, 64, 640)]  # rows, n, k
ODD_K = {
    "f32": 37,
    "f16": 100,
    "bf16": 77,
    "i8": 130,
    "i8/32": 33,
    "q8_0": 96,
    "q4_0": 32,
    "q4_1": 160,
    "int4": 90,
    "int4/32": 352,
}


@pytest.fixture(params=LEVELS)
def isa(request):
    return request.param


def make_weight(name, n, k, seed=0):
    """(weight, packed bytes, float64 values of shape (n, k))."""
    dtype, type_, options, _ = FORMATS[name]
    weight = _native.describe_weight(type_, n, k, **options)
    packed = np.empty(weight.bytes, np.uint8)
    _native.pack_weight(weight, [(dtype, make_rows(dtype, n, k, seed)[0])], packed)
    values = np.empty((n, k), np.float32)
    _native.unpack_columns(weight, packed, 0, values)
    return weight, packed, values.astype(np.float64)


def fill(acts, format_, k, rng):
    """Random activations; returns their float64 values, (rows, k)."""
    rows, k_pad = acts.data.shape
    if format_ == "f32":
        acts.data[:, :k] = rng.standard_normal((rows, k))
        return acts.data[:, :k].astype(np.float64)
    if format_ == "bf16":
        put_bf16(acts, np.s_[:, :k], rng.standard_normal((rows, k)))
        return bf16_of(acts)[:, :k].astype(np.float64)
    acts.data[:, :k] = rng.integers(-127, 128, (rows, k))
    groups = acts.scales.shape[1]
    acts.scales[:] = rng.uniform(0.001, 0.1, (rows, groups))
    grouped = acts.data.reshape(rows, groups, -1)
    acts.sums[:] = grouped.sum(axis=2, dtype=np.int32)
    return (grouped * acts.scales[:, :, None].astype(np.float64)).reshape(rows, k_pad)[:, :k]


def make_case(isa, name, m, n, k, seed=0):
    weight, packed, w = make_weight(name, n, k, seed)
    acts = ops.Acts(FORMATS[name][3], m, k, isa)
    x = fill(acts, FORMATS[name][3], k, np.random.default_rng([seed, m, n, k]))
    return weight, packed, acts, x @ w.T, np.abs(x) @ np.abs(w).T


def run(weight, packed, acts, isa, **options):
    width = weight.n_pad // 2 if options.get("epilogue") == "glu" else weight.n
    out = np.full((acts.data.shape[0], width), np.nan, np.float32)
    ops.linear(weight, packed, acts, out=out, isa=isa, **options)
    return out


def assert_close(y, expected, magnitude, k):
    """Any order of summing k products in f32 stays within k + 8 roundings of the sum of magnitudes."""
    assert np.isfinite(y).all()
    assert (np.abs(y - expected) <= (k + 8) * EPS * magnitude + 1e-30).all()


@pytest.mark.parametrize("name", FORMATS)
def test_products(isa, name):
    for m, n, k in [*SHAPES, (5, 65, ODD_K.get(name, 128))]:
        weight, packed, acts, expected, magnitude = make_case(isa, name, m, n, k)
        assert_close(run(weight, packed, acts, isa), expected, magnitude, k)


@pytest.mark.parametrize("name", FORMATS)
def test_rows_and_panels_do_not_see_each_other(isa, name):
    """The same bits for a row alone, in any batch and for any split into work items."""
    weight, packed, acts, _, _ = make_case(isa, name, 13, 200, 256)
    whole = run(weight, packed, acts, isa)
    for size in range(1, 13):
        for first in range(0, 14 - size, size):
            part = run(weight, packed, acts, isa, rows=(first, first + size))
            np.testing.assert_array_equal(part[first : first + size], whole[first : first + size])
            assert np.isnan(part[:first]).all()
            assert np.isnan(part[first + size :]).all()
    part = run(weight, packed, acts, isa, panels=(1, 3))
    np.testing.assert_array_equal(part[:, 64:192], whole[:, 64:192])
    assert np.isnan(part[:, :64]).all()
    assert np.isnan(part[:, 192:]).all()


@pytest.mark.parametrize("name", FORMATS)
def test_many_rows_have_the_bits_of_few(isa, name):
    """Weights that are expanded for many rows, in parts along k and for parts of the rows, change no bit (P1)."""
    weight, packed, acts, expected, magnitude = make_case(isa, name, 210, 70, 640)
    whole = run(weight, packed, acts, isa)
    assert_close(whole, expected, magnitude, 640)
    for first, last in [(0, 1), (5, 11), (90, 107), (100, 118), (191, 210)]:
        part = run(weight, packed, acts, isa, rows=(first, last))
        np.testing.assert_array_equal(part[first:last], whole[first:last])


@pytest.mark.parametrize("k", [576, 4224])  # in one part for many rows, and in two
def test_int4_has_the_bits_of_int8(isa, k):
    """Its codes are bytes of int8 when they meet activations: whatever the file holds, overflow included."""
    m, n = 20, 64
    rng = np.random.default_rng(3)
    weight = _native.describe_weight("i4", n, k, group=16)
    packed = rng.integers(0, 256, weight.bytes, np.uint8)
    packed[-256:] = np.ones(64, np.float32).view(np.uint8)
    values = np.empty((n, k), np.float32)
    _native.unpack_columns(weight, packed, 0, values)
    wide = _native.describe_weight("i8", n, k)
    codes = (values.astype(np.int32) + 128).astype(np.uint8)
    assert codes.min() == 0
    assert codes.max() == 255
    wide_packed = np.concatenate([codes.reshape(n, -1, 4).transpose(1, 0, 2).reshape(-1), packed[-256:]])
    acts = ops.Acts("s8g64", m, k)
    fill(acts, "s8g64", k, rng)
    expected = run(wide, wide_packed, acts, isa)
    for rows in (1, 3, 6, 7, 20):
        got = run(weight, packed, acts, isa, rows=(0, rows))
        np.testing.assert_array_equal(got[:rows], expected[:rows])


@pytest.mark.parametrize("name", ["f32", "bf16", "i8", "q4_1"])
def test_many_rows_finish_as_few_do(isa, name):
    """Each tile of many rows is finished when its last part of k is in: once, for glu when both panels are (P1)."""
    weight, packed, acts, _, _ = make_case(isa, name, 210, 256, 320)
    bias = np.random.default_rng(1).standard_normal(256).astype(np.float32)
    residual = np.random.default_rng(2).standard_normal((210, 256)).astype(np.float32)
    for epilogue, act, width in [("add", "none", 256), ("store", "silu", 256), ("glu", "silu", 128)]:
        out = [residual[:, :width].copy() for _ in range(2)]
        options = {"epilogue": epilogue, "act": act, "bias": bias, "isa": isa}
        ops.linear(weight, packed, acts, out=out[0], **options)
        for first in range(0, 210, 15):
            ops.linear(weight, packed, acts, out=out[1], rows=(first, first + 15), **options)
        np.testing.assert_array_equal(*out)


def test_a_call_of_more_rows_than_it_remembers(isa):
    """What the zero point takes from a row is kept for 1,024 rows of a call; those behind have it too."""
    weight, packed, acts, expected, magnitude = make_case(isa, "i8", 1040, 64, 128)
    assert_close(run(weight, packed, acts, isa), expected, magnitude, 128)


@pytest.mark.parametrize(("name", "largest"), [("i8", 127), ("i8/32", 127), ("q8_0", 128), ("q4_0", 8), ("q4_1", 15)])
def test_integers_are_exact(isa, name, largest):
    """With all scales 1 every sum is a whole number below 2^24, also at the ends of the ranges."""
    n, k, m = 64, 512, 7
    dtype, type_, options, format_ = FORMATS[name]
    rng = np.random.default_rng(0)
    low = 0 if name == "q4_1" else -largest
    high = 7 if name == "q4_0" else 127 if name == "q8_0" else largest
    q = rng.integers(low, high + 1, (n, k))
    q[: n // 2] = rng.choice([low, high], (n // 2, k))
    q[:, 0] = high
    blocks = q.reshape(n, -1, 32)
    one = np.broadcast_to(np.float16(1).reshape(1, 1, 1), (*blocks.shape[:2], 1))
    if dtype == "F32":
        rows = q.astype(np.float32).view(np.uint8)
    elif dtype == "Q8_0":
        rows = np.concatenate([one.copy().view(np.uint8), blocks.astype(np.int8).view(np.uint8)], axis=2)
    else:
        codes = (blocks + (8 if dtype == "Q4_0" else 0)).astype(np.uint8)
        header = [one.copy().view(np.uint8)] + ([(-3 * one).view(np.uint8)] if dtype == "Q4_1" else [])
        rows = np.concatenate([*header, codes[..., :16] | (codes[..., 16:] << 4)], axis=2)
    weight = _native.describe_weight(type_, n, k, **options)
    packed = np.empty(weight.bytes, np.uint8)
    _native.pack_weight(weight, [(dtype, rows.reshape(n, -1))], packed)
    acts = ops.Acts(format_, m, k)
    acts.data[:] = rng.choice([-127, 127], (m, k))
    acts.data[m // 2 :] = rng.integers(-127, 128, (m - m // 2, k))
    acts.scales[:] = 1
    acts.sums[:] = acts.data.reshape(m, acts.sums.shape[1], -1).sum(axis=2, dtype=np.int32)
    expected = acts.data.astype(np.int64) @ (q - (3 if dtype == "Q4_1" else 0)).T
    np.testing.assert_array_equal(run(weight, packed, acts, isa), expected)


def sigmoid(x):
    return np.exp(-np.logaddexp(0, -x))


# In forms that lose nothing in the tails.
ACTIVATIONS = {
    "none": lambda x: x,
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: x * 0.5 * np.vectorize(erfc)(-x / np.sqrt(2)),
    "gelu_tanh": lambda x: x * sigmoid(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)),
    "relu": lambda x: np.maximum(x, 0),
}


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_activations(isa, act):
    """On an identity weight, so that only the activation's own error is left: a few ulp of the result, plus what the
    rounding of an exponent near x^2 means for its exp."""
    weight, packed, _ = make_weight("f32", 64, 64)
    _native.pack_weight(weight, [("F32", np.eye(64, dtype=np.float32).view(np.uint8))], packed)
    x = np.concatenate([np.linspace(-30, 30, 4000), np.linspace(-0.1, 0.1, 96)]).astype(np.float32).reshape(64, 64)
    acts = ops.Acts("f32", 64, 64)
    acts.data[:] = x
    y = run(weight, packed, acts, isa, act=act)
    expected = ACTIVATIONS[act](x.astype(np.float64))
    assert (np.abs(y - expected) <= (1e-6 + 2 * EPS * x**2) * np.abs(expected) + 1e-30).all()
    acts.data[0, :4] = [200, -200, np.float32(3e38), np.float32(-3e38)]
    far = run(weight, packed, acts, isa, act=act)[0, :4]
    if act == "none":
        np.testing.assert_array_equal(far, acts.data[0, :4])
    else:
        np.testing.assert_allclose(far, [200, 0, 3e38, 0], rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("name", ["f32", "bf16", "i8", "q4_1"])
def test_store_bias_and_scale(isa, name):
    weight, packed, acts, expected, magnitude = make_case(isa, name, 13, 70, 128)
    bias = np.random.default_rng(1).standard_normal(70).astype(np.float32)
    assert_close(run(weight, packed, acts, isa, bias=bias), expected + bias, magnitude + np.abs(bias), 128)
    plain = run(weight, packed, acts, isa)
    np.testing.assert_array_equal(run(weight, packed, acts, isa, scale=0.5), plain * np.float32(0.5))


@pytest.mark.parametrize("name", ["f32", "bf16", "i8", "q4_1"])
def test_add(isa, name):
    weight, packed, acts, _, _ = make_case(isa, name, 13, 70, 128)
    bias = np.random.default_rng(1).standard_normal(70).astype(np.float32)
    residual = np.random.default_rng(2).standard_normal((13, 70)).astype(np.float32)
    out = residual.copy()
    ops.linear(weight, packed, acts, epilogue="add", scale=0.25, bias=bias, out=out, isa=isa)
    plain = run(weight, packed, acts, isa, bias=bias)
    np.testing.assert_array_equal(out, residual + np.float32(0.25) * plain)


@pytest.mark.parametrize("name", ["f32", "bf16", "i8", "q8_0", "q4_0", "int4"])
def test_glu(isa, name):
    weight, packed, acts, expected, magnitude = make_case(isa, name, 13, 256, 128)
    bias = np.random.default_rng(1).standard_normal(256).astype(np.float32)
    y = run(weight, packed, acts, isa, epilogue="glu", act="silu", bias=bias)
    gate, up = (expected + bias).reshape(13, 2, 2, 64).transpose(2, 0, 1, 3).reshape(2, 13, 128)
    gate_error, up_error = (magnitude + np.abs(bias)).reshape(13, 2, 2, 64).transpose(2, 0, 1, 3).reshape(2, 13, 128)
    silu = ACTIVATIONS["silu"](gate)
    error = 140 * EPS * (gate_error * 1.1 * np.abs(up) + np.abs(silu) * up_error)  # |silu'| < 1.1
    assert (np.abs(y - silu * up) <= error + 2e-6 * np.abs(silu * up)).all()


@pytest.mark.parametrize("epilogue", ["store", "glu"])
@pytest.mark.parametrize("format_", ["f32", "bf16", "s8g32", "s8g64"])
def test_output_formats(isa, format_, epilogue):
    """Quantized outputs are the f32 output, rounded; the pad is zero."""
    n = 70 if epilogue == "store" else 256
    weight, packed, acts, _, _ = make_case(isa, "i8", 13, n, 128)
    y = run(weight, packed, acts, isa, epilogue=epilogue, act="silu")
    out = ops.Acts(format_, 13, y.shape[1], isa)
    out.data[:] = 77
    ops.linear(weight, packed, acts, epilogue=epilogue, act="silu", out_acts=out, isa=isa)
    padded = np.zeros(out.data.shape, np.float32)
    padded[:, : y.shape[1]] = y
    if format_ == "f32":
        np.testing.assert_array_equal(out.data, padded)
    elif format_ == "bf16":
        np.testing.assert_array_equal(bf16_of(out), round_bf16(padded))
    else:
        groups = padded.reshape(13, out.scales.shape[1], -1)
        largest = np.abs(groups).max(axis=2)
        np.testing.assert_allclose(out.scales, largest / 127, rtol=1e-6)
        data = out.data.reshape(groups.shape)
        np.testing.assert_array_equal(out.sums, data.sum(axis=2, dtype=np.int32))
        error = np.abs(data * out.scales[:, :, None].astype(np.float64) - groups)
        assert (error <= 0.5001 * out.scales[:, :, None]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["f32", "bf16", "i8", "q4_1"])
def test_faults_stay_in_their_row_and_stay_visible(isa, name, bad):
    weight, packed, acts, _, _ = make_case(isa, name, 8, 128, 128)
    clean = run(weight, packed, acts, isa)
    if name == "f32":
        acts.data[3, 5] = bad
    elif name == "bf16":
        put_bf16(acts, np.s_[3, 5:6], [bad])
    else:
        acts.scales[3, 1] = np.nan  # what the quantizer makes of NaN and infinity
    y = run(weight, packed, acts, isa)
    assert not np.isfinite(y[3]).any()
    np.testing.assert_array_equal(np.delete(y, 3, axis=0), np.delete(clean, 3, axis=0))

    for act in ACTIVATIONS:
        out = ops.Acts("s8g64", 8, 64)
        ops.linear(weight, packed, acts, epilogue="glu", act=act, out_acts=out, isa=isa)
        assert np.isnan(out.scales[3]).all()
        assert np.isfinite(np.delete(out.scales, 3, axis=0)).all()


def test_arguments_are_checked():
    weight, packed, acts, _, _ = make_case("", "i8", 2, 64, 128)
    out = np.zeros((2, 64), np.float32)
    with pytest.raises(ValueError, match="does not take these activations"):
        ops.linear(weight, packed, ops.Acts("f32", 2, 128), out=out)
    with pytest.raises(ValueError, match="does not take these activations"):
        ops.linear(weight, packed, ops.Acts("s8g64", 2, 64), out=out)
    with pytest.raises(ValueError, match="too narrow"):
        ops.linear(weight, packed, acts, out=out[:, :63].copy())
    with pytest.raises(ValueError, match="as many rows"):
        ops.linear(weight, packed, acts, out=out[:1])
    with pytest.raises(ValueError, match="exactly one"):
        ops.linear(weight, packed, acts)
    with pytest.raises(ValueError, match="pairs of panels"):
        ops.linear(weight, packed, acts, epilogue="glu", out=out)
    with pytest.raises(ValueError, match="unknown activation: swish"):
        ops.linear(weight, packed, acts, act="swish", out=out)
    with pytest.raises(ValueError, match="unknown activation format"):
        ops.Acts("s8g16", 1, 64)


def test_activations_of_another_level_are_refused():
    """Levels store bf16 in two ways."""
    stored = {isa: ops.Acts("bf16", 1, 64, isa) for isa in LEVELS}
    x = np.ones((1, 64), np.float32)
    weight, packed, _ = make_weight("bf16", 64, 64)
    for isa in LEVELS:
        for acts in stored.values():
            if acts.data.dtype == stored[isa].data.dtype:
                ops.quantize(isa, x, acts)
                continue
            with pytest.raises(ValueError, match="another ISA level"):
                ops.quantize(isa, x, acts)
            with pytest.raises(ValueError, match="another ISA level"):
                run(weight, packed, acts, isa)


def test_bench_returns_seconds():
    weight = _native.describe_weight("i8", 128, 128)
    assert 0 < ops.linear_bench(weight, "s8g64", 4, epilogue="glu", act="silu", out="s8g64", min_seconds=0.001) < 1
