"""Memory of the process beside what was planned, so that a spike is seen before the kernel ends the process."""

from collections.abc import Mapping
from pathlib import Path

from legato.engine.instruments import Instruments, Values
from legato.executor.memory import available_memory

__all__ = ["add_process_metrics"]

_STATUS = Path("/proc/self/status")
_KINDS = {
    "RssAnon": "anonymous",  # what only this process has: heap, workspace, touched KV
    "RssFile": "file",  # mapped files, such as the weights
    "RssShmem": "shared",
    "VmSwap": "swap",
    "VmHWM": "peak",  # the most that was ever resident
}


def add_process_metrics(instruments: Instruments, planned: Mapping[str, int]) -> None:
    """planned: bytes by pool, as the executor divided the memory at start."""
    pools: Values = {(pool,): float(size) for pool, size in planned.items()}
    instruments.reading("gauge", "legato:memory_planned_bytes", "Memory by pool, as planned.", lambda: pools, ("pool",))
    instruments.reading(
        "gauge", "legato:process_memory_bytes", "Memory of the process, and the most it ever had.", _memory, ("kind",)
    )
    instruments.reading(
        "gauge",
        "legato:memory_available_bytes",
        "Memory that may still be taken: the least of MemAvailable and the control groups' limits.",
        lambda: float(available_memory()),
    )


def _memory() -> Values:
    found: dict[tuple[str, ...], float] = {}
    for line in _STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name in _KINDS:
            found[_KINDS[name],] = float(value.split()[0]) * 1024  # they are given in kB
    return found
