"""How late the event loop is: what a stream waits for beside the model."""

import asyncio

from legato.engine.instruments import Histogram

__all__ = ["BUCKETS", "watch_lag"]

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
INTERVAL_S = 0.05


async def watch_lag(lag: Histogram) -> None:
    """Observe, 20 times a second, by how many seconds a timer comes late. Runs until it is cancelled."""
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + INTERVAL_S
        await asyncio.sleep(INTERVAL_S)
        lag.observe(max(0.0, clock() - due))
