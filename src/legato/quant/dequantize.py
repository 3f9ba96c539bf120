"""Exact float32 values of a checkpoint's own rows. The layouts are drawn in `legato.weights.source.RawTensor`."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["dequantize"]

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_GROUP = 32


def dequantize(dtype: str, rows: Bytes) -> Floats:
    """float32 (rows, k) of uint8 (rows, bytes per row). KeyError for a dtype that is not supported."""
    return _DTYPES[dtype](np.ascontiguousarray(rows))


def _f32(rows: Bytes) -> Floats:
    return rows.view("<f4").astype(np.float32)


def _f16(rows: Bytes) -> Floats:
    return rows.view("<f2").astype(np.float32)


def _bf16(rows: Bytes) -> Floats:
    return (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(rows: Bytes) -> Floats:
    """Block: f16 d, 32 int8. w = d * q."""
    blocks = rows.reshape(len(rows), -1, 2 + _GROUP)
    d = blocks[..., :2].copy().view("<f2").astype(np.float32)
    q = blocks[..., 2:].view(np.int8).astype(np.float32)
    return (d * q).reshape(len(rows), -1)


def _q4_0(rows: Bytes) -> Floats:
    """Block: f16 d, 16 bytes of nibbles. w = d * (q - 8)."""
    blocks = rows.reshape(len(rows), -1, 2 + _GROUP // 2)
    d = blocks[..., :2].copy().view("<f2").astype(np.float32)
    return (d * (_nibbles(blocks[..., 2:]) - 8)).reshape(len(rows), -1)


def _q4_1(rows: Bytes) -> Floats:
    """Block: f16 d, f16 m, 16 bytes of nibbles. w = d * q + m."""
    blocks = rows.reshape(len(rows), -1, 4 + _GROUP // 2)
    d = blocks[..., :2].copy().view("<f2").astype(np.float32)
    m = blocks[..., 2:4].copy().view("<f2").astype(np.float32)
    return (d * _nibbles(blocks[..., 4:]) + m).reshape(len(rows), -1)


def _nibbles(packed: Bytes) -> Floats:
    """Low nibbles are values 0..15 of a block, high nibbles values 16..31."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.float32)


_DTYPES: dict[str, Callable[[Bytes], Floats]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
}
