import numpy as np
import pytest
from levels import from_bf16, round_bf16, to_bf16
from sources import SOURCES, make_rows

from legato import _native

OWN = [
    ("F32", "f32", {}),
    ("F16", "f16", {}),
    ("BF16", "bf16", {}),
    ("Q8_0", "i8", {"group": 32}),
    ("Q4_0", "q4", {"group": 32, "zero": 8}),
    ("Q4_1", "q4", {"group": 32, "has_min": True}),
]
SHAPES = [(1, 32), (64, 64), (70, 96), (130, 576)]
ODD_SHAPES = [(1, 1), (3, 7), (65, 100)]


def pack(weight, *sources, **options):
    out = np.full(weight.bytes, 0xAA, np.uint8)
    _native.pack_weight(weight, list(sources), out, **options)
    return out


def unpack(weight, packed, columns=None):
    out = np.empty((weight.n if columns is None else columns, weight.k), np.float32)
    _native.unpack_columns(weight, packed, 0, out)
    return out


@pytest.mark.parametrize("dtype", SOURCES)
def test_dequantize_is_exact(dtype):
    rows, values = make_rows(dtype, 5, 96)
    out = np.empty_like(values)
    _native.dequantize(dtype, rows, out)
    np.testing.assert_array_equal(out, values)


@pytest.mark.parametrize(("dtype", "bits"), [("F16", np.float16), ("BF16", np.uint16)])
def test_every_16_bit_number_dequantizes(dtype, bits):
    every = np.arange(65536, dtype=np.uint16).reshape(1, -1)
    expected = every.view(np.float16).astype(np.float32) if bits is np.float16 else from_bf16(every)
    out = np.empty((1, 65536), np.float32)
    _native.dequantize(dtype, every.view(np.uint8), out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "type_", "options"), OWN)
def test_own_numbers_are_kept(dtype, type_, options, shape):
    rows, values = make_rows(dtype, *shape)
    weight = _native.describe_weight(type_, *shape, **options)
    np.testing.assert_array_equal(unpack(weight, pack(weight, (dtype, rows))), values)


@pytest.mark.parametrize("shape", ODD_SHAPES)
@pytest.mark.parametrize(("dtype", "type_"), [("F32", "f32"), ("F16", "f16"), ("BF16", "bf16")])
def test_odd_shapes_are_kept(dtype, type_, shape):
    rows, values = make_rows(dtype, *shape)
    weight = _native.describe_weight(type_, *shape)
    assert (weight.n_pad % 64, weight.k_pad % 64) == (0, 0)
    np.testing.assert_array_equal(unpack(weight, pack(weight, (dtype, rows))), values)


def test_layouts_are_as_drawn():
    """Byte for byte, from the drawing in pack.h."""
    rows, values = make_rows("F32", 70, 100)
    padded = np.zeros((128, 128), np.float32)
    padded[:70, :100] = values
    weight = _native.describe_weight("f32", 70, 100)
    panels = pack(weight, ("F32", rows)).view(np.float32).reshape(2, 128, 64)
    np.testing.assert_array_equal(panels, padded.reshape(2, 64, 128).transpose(0, 2, 1))

    weight = _native.describe_weight("bf16", 70, 100)
    panels = pack(weight, ("F32", rows)).view(np.uint16).reshape(2, 64, 64, 2)
    np.testing.assert_array_equal(panels, to_bf16(padded).reshape(2, 64, 64, 2).transpose(0, 2, 1, 3))

    rows, _ = make_rows("Q4_1", 64, 64)
    weight = _native.describe_weight("q4", 64, 64, group=32, has_min=True)
    group = pack(weight, ("Q4_1", rows)).reshape(2, 2 * 128 + 1024)[1]
    block = rows[:, 20:]  # each row's second block
    np.testing.assert_array_equal(group[:128].reshape(64, 2), block[:, :2])
    np.testing.assert_array_equal(group[128:256].reshape(64, 2), block[:, 2:4])
    np.testing.assert_array_equal(group[256:].reshape(4, 64, 4).transpose(1, 0, 2).reshape(64, 16), block[:, 4:])
    assert [_native.describe_weight(t, 1, 1, g).layout for t, g in LAYOUTS] == [1, 2, 3, 4, 5, 6, 7]


LAYOUTS = [("f32", 0), ("f16", 0), ("bf16", 0), ("i8", 0), ("i8", 32), ("q4", 32), ("i4", 16)]


@pytest.mark.parametrize(("type_", "code"), [("i8", 128), ("q4", 0x88)])
def test_pad_holds_the_zero_point(type_, code):
    weight = _native.describe_weight(type_, 1, 32, group=32, zero=8 if type_ == "q4" else 0)
    packed = pack(
        weight, ("Q8_0" if type_ == "i8" else "Q4_0", make_rows("Q8_0" if type_ == "i8" else "Q4_0", 1, 32)[0])
    )
    first, second = packed.reshape(2, -1)
    assert not second[:128].any()
    assert (second[128:] == code).all()
    assert (first[128:].reshape(-1, 64, 4)[:, 1:] == code).all()


@pytest.mark.parametrize("dtype", SOURCES)
def test_bf16_rounds_to_nearest_even(dtype):
    rows, values = make_rows(dtype, 70, 96)
    weight = _native.describe_weight("bf16", 70, 96)
    np.testing.assert_array_equal(unpack(weight, pack(weight, (dtype, rows))), round_bf16(values))


@pytest.mark.parametrize("dtype", SOURCES)
def test_int8_per_channel(dtype):
    rows, values = make_rows(dtype, 70, 96)
    weight = _native.describe_weight("i8", 70, 96)
    unpacked = unpack(weight, pack(weight, (dtype, rows)))
    scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    assert (np.abs(unpacked - values) <= scale * 0.5001).all()
    np.testing.assert_allclose(np.abs(unpacked).max(axis=1), np.abs(values).max(axis=1), rtol=1e-6)


def test_int8_of_vanishing_rows():
    rows = np.zeros((3, 64), np.float32)
    rows[1] = 1e-40
    weight = _native.describe_weight("i8", 3, 64)
    assert not unpack(weight, pack(weight, ("F32", rows.view(np.uint8)))).any()


INT4 = {"group": 16}


@pytest.mark.parametrize("dtype", ["F32", "F16", "Q8_0"])
def test_int4_beats_plain_min_max(dtype):
    """Less error than floats for the least value and the step of the same groups give, rounded to nearest."""
    rows, values = make_rows(dtype, 70, 256)
    weight = _native.describe_weight("i4", 70, 256, **INT4)
    groups = values.reshape(70, -1, 16)
    low = groups.min(axis=2, keepdims=True)
    d = (groups.max(axis=2, keepdims=True) - low) / 15
    plain = low + d * np.rint((groups - low) / d)
    error = unpack(weight, pack(weight, (dtype, rows))).reshape(groups.shape) - groups
    scale = np.abs(values).max(axis=1).reshape(70, 1, 1) / 127
    assert (np.abs(error) <= 1.5 * d + 2 * scale).all()
    assert np.square(error).sum() < 0.97 * np.square(plain - groups).sum()


def int4_by_hand(packed, n_panels, k_pad):
    """(bytes of shape (n_pad, k_pad), channel scales) from the drawing in pack.h."""
    panels = packed.reshape(n_panels, -1)
    scales = panels[:, -256:].copy().view(np.float32).reshape(-1)
    pairs = panels[:, :-256].reshape(n_panels, k_pad // 32, 3 * 64 + 4 * 64 * 4).transpose(0, 2, 1)
    heads, codes = pairs[:, :192].reshape(n_panels, 3, 64, -1), pairs[:, 192:].reshape(n_panels, 4, 64, 4, -1)
    codes = codes.transpose(0, 2, 4, 1, 3).reshape(n_panels, 64, -1, 16)
    steps, offsets = heads[:, 0], heads[:, 1:].transpose(0, 2, 3, 1)
    steps, codes = np.stack([steps & 15, steps >> 4], axis=-1) + 1, np.stack([codes & 15, codes >> 4], axis=-2)
    values = steps[..., None].astype(int) * codes + offsets[..., None]
    return values.reshape(n_panels * 64, k_pad), scales


@pytest.mark.parametrize("shape", [(70, 256), (65, 96), (3, 37)])
def test_int4_is_as_drawn(shape):
    """Byte for byte, from the drawing in pack.h; no byte overflows, and pad columns are 0."""
    rows, _ = make_rows("F32", *shape)
    n, k = shape
    weight = _native.describe_weight("i4", n, k, **INT4)
    assert weight.bytes == weight.n_pad * (weight.k_pad * 19 // 32 + 4)
    packed = pack(weight, ("F32", rows))
    values, scales = int4_by_hand(packed, weight.panels, weight.k_pad)
    assert values.min() >= 0
    assert values.max() <= 255
    weights = scales[:, None] * (values - 128).astype(np.float32)
    np.testing.assert_array_equal(unpack(weight, packed), weights[:n, :k])
    assert not weights[n:].any()


def test_int4_of_constant_zero_and_partial_groups():
    rows = np.full((3, 40), 0.25, np.float32)
    rows[1, 32:] = (127 - 8 * np.arange(8)) / 127
    rows[2] = 0
    weight = _native.describe_weight("i4", 3, 40, **INT4)
    unpacked = unpack(weight, pack(weight, ("F32", rows.view(np.uint8))))
    np.testing.assert_allclose(unpacked, rows, atol=0.25001 / 127)
    np.testing.assert_allclose(unpacked[0], rows[0], rtol=1e-6)
    assert not unpacked[2].any()


def test_sources_are_concatenated_and_may_differ_in_dtype():
    (a, a_values), (b, b_values) = make_rows("Q4_1", 70, 64), make_rows("F16", 3, 64, seed=1)
    weight = _native.describe_weight("f32", 73, 64)
    unpacked = unpack(weight, pack(weight, ("Q4_1", a), ("F16", b)))
    np.testing.assert_array_equal(unpacked, np.concatenate([a_values, b_values]))


def test_interleaved_panels_are_padded_each():
    (gate, gate_values), (up, up_values) = make_rows("F32", 70, 64), make_rows("F32", 70, 64, seed=1)
    weight = _native.describe_weight("f32", 256, 64)
    columns = unpack(weight, pack(weight, ("F32", gate), ("F32", up), interleave=True)).reshape(2, 2, 64, 64)
    np.testing.assert_array_equal(columns[:, 0].reshape(128, 64)[:70], gate_values)
    np.testing.assert_array_equal(columns[:, 1].reshape(128, 64)[:70], up_values)
    assert not columns[1, :, 6:].any()


@pytest.mark.parametrize(("dtype", "type_", "options"), OWN)
def test_panel_ranges_make_up_the_whole(dtype, type_, options):
    rows, _ = make_rows(dtype, 200, 64)
    weight = _native.describe_weight(type_, 200, 64, **options)
    whole = pack(weight, (dtype, rows))
    out = np.zeros_like(whole)
    for panel in (2, 0, 3, 1):
        _native.pack_weight(weight, [(dtype, rows)], out, panel_begin=panel, panel_end=panel + 1)
    np.testing.assert_array_equal(out, whole)


@pytest.mark.parametrize(
    ("type_", "options"),
    [
        ("f32", {"group": 32}),
        ("i8", {"group": 64}),
        ("i8", {"zero": 1}),
        ("i8", {"has_min": True}),
        ("q4", {}),
        ("q4", {"group": 16}),
        ("q4", {"group": 64}),
        ("i4", {}),
        ("i4", {"group": 32}),
        ("i4", {"group": 16, "zero": 8}),
        ("i4", {"group": 16, "has_min": True}),
        ("q4", {"group": 32, "zero": 16}),
        ("q5", {}),
    ],
)
def test_no_such_layout(type_, options):
    with pytest.raises(ValueError, match=r"no packed layout|unknown weight type"):
        _native.describe_weight(type_, 64, 64, **options)


@pytest.mark.parametrize(
    ("type_", "options", "dtype", "message"),
    [
        ("f16", {}, "F32", "made from F16 only"),
        ("i8", {"group": 32}, "F32", "made from Q8_0 only"),
        ("q4", {"group": 32, "zero": 8}, "Q4_1", "made from Q4_0 only"),
        ("q4", {"group": 32, "has_min": True}, "F32", "made from Q4_1 only"),
    ],
)
def test_no_such_conversion(type_, options, dtype, message):
    weight = _native.describe_weight(type_, 64, 64, **options)
    with pytest.raises(ValueError, match=message):
        pack(weight, (dtype, make_rows(dtype, 64, 64)[0]))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("type_", "options"), [("i8", {}), ("i4", {"group": 16})])
def test_quantizers_refuse_what_is_not_finite(type_, options, bad):
    rows, _ = make_rows("F32", 64, 64)
    rows.view(np.float32)[63, 63] = bad
    weight = _native.describe_weight(type_, 64, 64, **options)
    with pytest.raises(ValueError, match="NaN or infinite"):
        pack(weight, ("F32", rows))


def test_sizes_are_checked():
    rows, _ = make_rows("F32", 64, 64)
    weight = _native.describe_weight("f32", 64, 64)
    with pytest.raises(ValueError, match="wrong size"):
        pack(weight, ("F32", rows[:, :-4].copy()))
    with pytest.raises(ValueError, match="differ in shape"):
        pack(weight, ("F32", rows[:-1]))
    with pytest.raises(ValueError, match="no such panels"):
        pack(weight, ("F32", rows), panel_begin=1, panel_end=2)
    with pytest.raises(ValueError, match=r"weight\.bytes"):
        _native.pack_weight(weight, [("F32", rows)], np.zeros(1, np.uint8))
