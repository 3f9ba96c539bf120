"""Weight formats. The native layouts of each are drawn in csrc/kernels/pack.h.

A grouped weight is w = d * (q - zero) + m with one d (and m) per output row and group of `group` inputs; a
per-channel one (group 0) has one d per output row. int4 has two levels: w = d * (s * q + z - 128), d per output row,
whole numbers s and z per group, so that it meets activations as the byte s * q + z. Activations meet a weight in its
`activation` format.
"""

from dataclasses import dataclass

__all__ = ["FORMATS", "WeightFormat", "format_for_source"]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """bits per value; group along K (0: whole row); integer zero point; whether each group has a minimum m."""

    name: str
    bits: int
    activation: str
    group: int = 0
    zero: int = 0
    has_min: bool = False


FORMATS = {
    f.name: f
    for f in (
        WeightFormat("f32", 32, "f32"),
        WeightFormat("f16", 16, "f32"),
        WeightFormat("bf16", 16, "bf16"),
        WeightFormat("int8", 8, "s8g64"),
        WeightFormat("int4", 4, "s8g64", group=16),
        WeightFormat("q8_0", 8, "s8g32", group=32),
        WeightFormat("q4_0", 4, "s8g32", group=32, zero=8),
        WeightFormat("q4_1", 4, "s8g32", group=32, has_min=True),
    )
}

_OWN = {"F32": "f32", "F16": "f16", "BF16": "bf16", "Q8_0": "q8_0", "Q4_0": "q4_0", "Q4_1": "q4_1"}


def format_for_source(source_dtype: str) -> str:
    """The format that keeps a checkpoint dtype's numbers exactly. KeyError for one that is not supported."""
    return _OWN[source_dtype]
