"""The KV cache as numpy sees it, from the layout drawn in csrc/kernels/kernels.h."""

from typing import NamedTuple

import numpy as np
from levels import from_bf16

DTYPES = ["fp32", "bf16", "int8", "fp8"]
CODED = ["int8", "fp8"]


class Layout(NamedTuple):
    """Bytes of an element, and how many dimensions (K) or slots (V) lie together."""

    bytes: int
    group: int


LAYOUTS = {"fp32": Layout(4, 1), "bf16": Layout(2, 2), "int8": Layout(1, 4), "fp8": Layout(1, 4)}


def e4m3(codes):
    """uint8 codes of fp8 e4m3 as float32."""
    exponent, mantissa = (codes >> 3) & 15, (codes & 7).astype(np.float32)
    magnitude = np.where(exponent == 0, mantissa / 512, (1 + mantissa / 8) * np.exp2(exponent.astype(np.float32) - 7))
    magnitude = np.where((codes & 127) == 127, np.nan, magnitude)
    return np.where(codes & 128, -magnitude, magnitude).astype(np.float32)


def elements(raw, dtype):
    """Bytes as numbers, without scales."""
    if dtype == "fp32":
        return raw.view(np.float32)
    if dtype == "bf16":
        return from_bf16(raw.view(np.uint16))
    return e4m3(raw) if dtype == "fp8" else raw.astype(np.float32) - 128


def unpack(data, dtype, kv_heads, head_dim, block_size):
    """K and V float32 [kv_heads, slots, head_pad], and their scales [kv_heads, slots] (1 where there are none).

    data: uint8 [blocks, bytes of a block] of one layer.
    """
    pad, tiles, layout = -(-head_dim // 16) * 16, block_size // 16, LAYOUTS[dtype]
    size, group = 16 * pad * layout.bytes, layout.group
    parts = data.reshape(-1, kv_heads, tiles, 2 * size + (64 if dtype in CODED else 0))
    k = elements(np.ascontiguousarray(parts[..., :size]), dtype).reshape(-1, kv_heads, tiles, pad // group, 16, group)
    v = elements(np.ascontiguousarray(parts[..., size : 2 * size]), dtype)
    v = v.reshape(-1, kv_heads, tiles, 16 // group, pad, group)
    if dtype == "fp8":
        k, v = (a[..., [0, 2, 1, 3]] for a in (k, v))
    values = [k.swapaxes(3, 4).reshape(-1, kv_heads, block_size, pad)]
    values.append(v.swapaxes(4, 5).reshape(-1, kv_heads, block_size, pad))
    if dtype in CODED:
        both = from_bf16(np.ascontiguousarray(parts[..., 2 * size :]).view(np.uint16))
        scales = [both[..., i * 16 : (i + 1) * 16].reshape(-1, kv_heads, block_size) for i in range(2)]
    else:
        scales = [np.ones((len(data), kv_heads, block_size), np.float32)] * 2
    k, v, k_scales, v_scales = (np.moveaxis(a, 1, 0).reshape(kv_heads, -1, *a.shape[3:]) for a in (*values, *scales))
    with np.errstate(over="ignore"):  # stale bytes may be any scale
        return k * k_scales[..., None], v * v_scales[..., None], k_scales, v_scales
