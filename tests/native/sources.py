"""Checkpoint rows made in numpy: the bytes of each source dtype, and the numbers they mean (float32)."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from levels import from_bf16, to_bf16

__all__ = ["SOURCES", "make_rows"]

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


def _f32(x: Floats) -> tuple[Bytes, Floats]:
    return x.view(np.uint8), x


def _f16(x: Floats) -> tuple[Bytes, Floats]:
    half = x.astype(np.float16)
    return half.view(np.uint8), half.astype(np.float32)


def _bf16(x: Floats) -> tuple[Bytes, Floats]:
    bits = to_bf16(x)
    return bits.view(np.uint8), from_bf16(bits)


def _blocks(x: Floats) -> Floats:
    return x.reshape(x.shape[0], -1, 32)


def _join(*parts: npt.NDArray[np.generic]) -> Bytes:
    """Per block: the bytes of each part, in order. Parts are (rows, blocks, any)."""
    return np.concatenate([part.view(np.uint8) for part in parts], axis=2).reshape(parts[0].shape[0], -1)


def _nibbles(q: npt.NDArray[np.uint8]) -> Bytes:
    return q[..., :16] | (q[..., 16:] << 4)


def _q8_0(x: Floats) -> tuple[Bytes, Floats]:
    blocks = _blocks(x)
    d = (np.abs(blocks).max(axis=2, keepdims=True) / 127).astype(np.float16)
    q = np.clip(np.rint(blocks / np.maximum(d, np.float16(1e-6)).astype(np.float32)), -128, 127).astype(np.int8)
    return _join(d, q), (d.astype(np.float32) * q).reshape(x.shape)


def _q4_0(x: Floats) -> tuple[Bytes, Floats]:
    blocks = _blocks(x)
    d = (np.abs(blocks).max(axis=2, keepdims=True) / 7.5).astype(np.float16)
    steps = blocks / np.maximum(d, np.float16(1e-6)).astype(np.float32)
    q = np.clip(np.rint(steps) + 8, 0, 15).astype(np.uint8)
    values = d.astype(np.float32) * (q.astype(np.float32) - 8)
    return _join(d, _nibbles(q)), values.reshape(x.shape)


def _q4_1(x: Floats) -> tuple[Bytes, Floats]:
    blocks = _blocks(x)
    low = blocks.min(axis=2, keepdims=True)
    d = ((blocks.max(axis=2, keepdims=True) - low) / 15).astype(np.float16)
    m = low.astype(np.float16)
    steps = (blocks - low) / np.maximum(d, np.float16(1e-6)).astype(np.float32)
    q = np.clip(np.rint(steps), 0, 15).astype(np.uint8)
    values = d.astype(np.float32) * q.astype(np.float32) + m.astype(np.float32)
    return _join(d, m, _nibbles(q)), values.reshape(x.shape)


SOURCES: dict[str, Callable[[Floats], tuple[Bytes, Floats]]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
}


def make_rows(dtype: str, n: int, k: int, seed: int = 0) -> tuple[Bytes, Floats]:
    """Random (n, k) rows with columns of very different size: (bytes of shape (n, row bytes), exact values)."""
    rng = np.random.default_rng([seed, n, k])
    x = rng.standard_normal((n, k)) * np.exp(rng.standard_normal((n, 1)))
    return SOURCES[dtype](np.ascontiguousarray(x, np.float32))
