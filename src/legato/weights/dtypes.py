"""The tensor types that checkpoints may hold, and their size on disk."""

__all__ = ["BLOCKS", "SUPPORTED", "row_bytes"]

# dtype: (values per block, bytes per block); blocks run along the last axis
BLOCKS = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q8_0": (32, 34),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
}

SUPPORTED = ", ".join(BLOCKS)


def row_bytes(dtype: str, k: int) -> int | None:
    """Bytes of a row of `k` values; None where k is not a whole number of blocks."""
    values, size = BLOCKS[dtype]
    return None if k % values else k // values * size
