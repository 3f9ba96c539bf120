import numpy as np
import pytest
from kv_layout import CODED, DTYPES, unpack
from levels import LEVELS, round_bf16

from legato import _native

ops = _native.ops


def rms(x, weight, eps):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight


def rotate(x, cos_sin, positions):
    half = cos_sin.shape[1] // 2
    cos, sin = cos_sin[positions, None, :half], cos_sin[positions, None, half:]
    a, b = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], axis=-1)


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rope_dim"), [(9, 3, 64, 64), (4, 2, 128, 32), (2, 1, 34, 34), (3, 3, 80, 0)]
)
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("block_size", [16, 48])
def test_heads_to_cache(isa, dtype, heads, kv_heads, head_dim, rope_dim, norm, block_size):
    rng = np.random.default_rng(head_dim)
    rows, blocks = 7, 4
    x = rng.standard_normal((rows, (heads + 2 * kv_heads) * head_dim)).astype(np.float32)
    q_norm, k_norm = (rng.standard_normal(head_dim).astype(np.float32) if norm else None for _ in range(2))
    angles = rng.uniform(0, 6, (50, rope_dim // 2))
    cos_sin = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32) if rope_dim else None
    positions = rng.integers(0, 50, rows).astype(np.int32)
    slots = rng.permutation(blocks * block_size)[:rows].astype(np.int64)
    cache = ops.KvCache(dtype, blocks, block_size, kv_heads, head_dim)
    cache.data[:] = 0xFF
    q = np.full((rows, heads * head_dim), np.nan, np.float32)
    ops.heads_to_cache(isa, cache, x, heads, q_norm, k_norm, 1e-5, cos_sin, positions, slots, q)

    parts = np.split(x.astype(np.float64), [heads * head_dim, (heads + kv_heads) * head_dim], axis=1)
    want_q, want_k, want_v = (part.reshape(rows, -1, head_dim) for part in parts)
    if norm:
        want_q, want_k = rms(want_q, q_norm, 1e-5), rms(want_k, k_norm, 1e-5)
    if rope_dim:
        want_q, want_k = rotate(want_q, cos_sin, positions), rotate(want_k, cos_sin, positions)
    np.testing.assert_allclose(q, want_q.reshape(rows, -1), rtol=1e-5, atol=4e-6)

    k, v, k_scales, v_scales = unpack(cache.data, dtype, kv_heads, head_dim, block_size)
    got_k, got_v = k[:, slots].swapaxes(0, 1), v[:, slots].swapaxes(0, 1)
    if dtype in CODED:
        for got, want, scales in ((got_k, want_k, k_scales), (got_v, want_v, v_scales)):
            assert_coded(dtype, got[..., :head_dim], want, scales[:, slots].T)
    else:
        tolerance = {"rtol": 2**-8, "atol": 1e-5} if dtype == "bf16" else {"rtol": 1e-5, "atol": 4e-6}
        np.testing.assert_allclose(got_k[..., :head_dim], want_k, **tolerance)
        exact_v = round_bf16(want_v.astype(np.float32)) if dtype == "bf16" else want_v
        np.testing.assert_array_equal(got_v[..., :head_dim], exact_v)
    assert not got_k[..., head_dim:].any()
    assert not got_v[..., head_dim:].any()

    untouched = np.setdiff1d(np.arange(blocks * block_size), slots)
    assert np.isnan(k[:, untouched]).all()
    assert np.isnan(v[:, untouched]).all()


def assert_coded(dtype, got, want, scales):
    """Within half a step of the code, whose scale makes the largest magnitude of a row's head the largest code."""
    largest = 127 if dtype == "int8" else 448
    np.testing.assert_array_equal(scales, round_bf16((abs(want).max(axis=-1) / largest).astype(np.float32)))
    step = np.ones_like(want)
    if dtype == "fp8":
        step = np.exp2(np.maximum(np.floor(np.log2(np.maximum(abs(want) / scales[..., None], 2**-9))), -6) - 3)
        step = np.where(abs(want) / scales[..., None] < 2**-6, 2**-6, step)  # there are no subnormals
    assert np.all(abs(got - want) <= scales[..., None] * step * 0.5001 + 4e-6 * abs(want).max())


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("dtype", CODED)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_fault_makes_the_scale_of_its_slot_and_head_nan(isa, dtype, value):
    x = np.random.default_rng(1).standard_normal((3, 6 * 34)).astype(np.float32)
    x[1, 2 * 34 + 5] = value  # in K of the first head
    x[2, 5 * 34 + 33] = value  # in V of the second
    cache, q = ops.KvCache(dtype, 1, 16, 2, 34), np.empty((3, 68), np.float32)
    cache.data[:] = 0
    positions = np.arange(3, dtype=np.int32)
    ops.heads_to_cache(isa, cache, x, 2, None, None, 0.0, None, positions, positions.astype(np.int64), q)
    _, _, k_scales, v_scales = unpack(cache.data, dtype, 2, 34, 16)
    assert np.argwhere(np.isnan(k_scales)).tolist() == [[0, 1]]
    assert np.argwhere(np.isnan(v_scales)).tolist() == [[1, 2]]


@pytest.mark.parametrize("dtype", CODED)
@pytest.mark.parametrize("value", [0.0, 1e-38, 1e-31, 3e38])
def test_heads_without_range_and_at_the_end_of_it(dtype, value):
    x = np.full((1, 48), value, np.float32)
    cache, q = ops.KvCache(dtype, 1, 16, 1, 16), np.empty((1, 16), np.float32)
    cache.data[:] = 0
    for isa in LEVELS:
        ops.heads_to_cache(isa, cache, x, 1, None, None, 0.0, None, np.zeros(1, np.int32), np.zeros(1, np.int64), q)
        k, v, _, _ = unpack(cache.data, dtype, 1, 16, 16)
        want = value if value > 1e-30 else 0
        np.testing.assert_allclose(k[0, 0], want, rtol=2**-8)
        np.testing.assert_allclose(v[0, 0], want, rtol=2**-8)


@pytest.mark.parametrize("slot", [-1, 32])
def test_slots_that_the_cache_lacks_are_refused(slot):
    cache, x = ops.KvCache("bf16", 2, 16, 1, 16), np.zeros((1, 48), np.float32)
    positions, slots, q = np.zeros(1, np.int32), np.array([slot]), np.empty((1, 16), np.float32)
    with pytest.raises(ValueError, match="a slot is out of range"):
        ops.heads_to_cache(LEVELS[0], cache, x, 1, None, None, 0.0, None, positions, slots, q)
