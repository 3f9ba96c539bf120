"""The least and the most that still does: replicas for a load, load for a replica."""

import math
from collections.abc import Callable

__all__ = ["least_count", "most_rate"]


def least_count(does: Callable[[int], bool], most: int) -> int | None:
    """The smallest count from 1 to `most` that does, by doubling and bisection; None where not even `most` does.

    `does` is expected to stay true once it is.
    """
    low, high = 0, 1
    while not does(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        if does(middle):
            high = middle
        else:
            low = middle
    return high


def most_rate(does: Callable[[float], bool], start: float, precision: float = 0.03) -> float:
    """The largest rate that does, within a share of `precision`; 0 where not even start / 1024 does, inf where all do.

    `does` is expected to stay false once it is.
    """
    low, high = start, 2 * start
    while not does(low):
        low, high = low / 2, low
        if low < start / 1024:
            return 0.0
    while does(high):
        low, high = high, 2 * high
        if low > start * 1e6:
            return math.inf
    while high / low > 1 + precision:
        middle = (low * high) ** 0.5
        if does(middle):
            low = middle
        else:
            high = middle
    return low
