"""The ISA levels of this machine, and bf16 as numpy sees it."""

import numpy as np

from legato import _native

LEVELS = [name for name, obstacle in _native.ops.isa_levels().items() if obstacle is None]
# Levels of one vector width give the same bits.
WIDTHS = {width: [isa for isa in LEVELS if isa.startswith(width)] for width in ("avx2", "avx512")}


def to_bf16(x):
    """float32 to bf16 bits, rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def bf16_of(acts):
    """The numbers that bf16 activations hold: a level stores them as bits, or each as the float32 it stands for."""
    return from_bf16(acts.data) if acts.data.dtype == np.uint16 else acts.data


def put_bf16(acts, at, x):
    """x at this index of bf16 activations, rounded."""
    x = np.asarray(x, np.float32)
    acts.data[at] = to_bf16(x) if acts.data.dtype == np.uint16 else round_bf16(x)


def round_bf16(x):
    return from_bf16(to_bf16(x))
