import numpy as np
import pytest
from levels import LEVELS, from_bf16, round_bf16

from legato import _native

ops = _native.ops


def unpack(cache, dtype, kv_heads, head_dim, block_size):
    """K and V as [kv_heads, slots, head_pad], from the layout drawn in kernels.h."""
    pad = -(-head_dim // 16) * 16
    tiles = block_size // 16
    raw = cache.data
    if dtype == "f32":
        parts = raw.view(np.float32).reshape(-1, kv_heads, tiles, 2, 16 * pad)
        k = parts[:, :, :, 0].reshape(-1, kv_heads, tiles, pad, 16).swapaxes(3, 4)
        v = parts[:, :, :, 1].reshape(-1, kv_heads, tiles, 16, pad)
    else:
        parts = from_bf16(raw.view(np.uint16)).reshape(-1, kv_heads, tiles, 2, 16 * pad)
        k = parts[:, :, :, 0].reshape(-1, kv_heads, tiles, pad // 2, 16, 2).swapaxes(3, 4)
        v = parts[:, :, :, 1].reshape(-1, kv_heads, tiles, 8, pad, 2).swapaxes(4, 5)
    return tuple(np.moveaxis(a.reshape(-1, kv_heads, block_size, pad), 1, 0).reshape(kv_heads, -1, pad) for a in (k, v))


def rms(x, weight, eps):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight


def rotate(x, cos_sin, positions):
    half = cos_sin.shape[1] // 2
    cos, sin = cos_sin[positions, None, :half], cos_sin[positions, None, half:]
    a, b = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], axis=-1)


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
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
    slots[3] = -1
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

    k, v = unpack(cache, dtype, kv_heads, head_dim, block_size)
    written = slots >= 0
    got_k, got_v = k[:, slots[written]].swapaxes(0, 1), v[:, slots[written]].swapaxes(0, 1)
    tolerance = {"rtol": 2**-8, "atol": 1e-5} if dtype == "bf16" else {"rtol": 1e-5, "atol": 4e-6}
    np.testing.assert_allclose(got_k[..., :head_dim], want_k[written], **tolerance)
    exact_v = round_bf16(want_v.astype(np.float32)) if dtype == "bf16" else want_v
    np.testing.assert_array_equal(got_v[..., :head_dim], exact_v[written])
    assert not got_k[..., head_dim:].any()
    assert not got_v[..., head_dim:].any()

    untouched = np.setdiff1d(np.arange(blocks * block_size), slots[written])
    assert np.isnan(k[:, untouched]).all()
    assert np.isnan(v[:, untouched]).all()
