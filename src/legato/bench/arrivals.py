"""When requests are sent, fixed before the first is: an open loop that a slow server cannot slow down."""

import math
import random

from legato.core.errors import ConfigError

__all__ = ["arrivals"]


def arrivals(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Seconds from the start at which to send each of `count` requests, ascending.

    Gaps are Gamma(shape burstiness, mean 1 / rate): 1 gives a Poisson process, less gives bursts, inf equal gaps.
    They are scaled so that the last request leaves at count / rate, as vLLM's client does. rate inf: all at once.
    """
    if not rate > 0 or not burstiness > 0:
        raise ConfigError("request-rate and burstiness must be above 0")
    if math.isinf(rate):
        return [0.0] * count
    rng = random.Random(seed)
    gaps = [1.0 if math.isinf(burstiness) else rng.gammavariate(burstiness, 1 / burstiness) for _ in range(count)]
    scale = count / rate / sum(gaps)
    times, now = [], 0.0
    for gap in gaps:
        now += gap * scale
        times.append(now)
    return times
