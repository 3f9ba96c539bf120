"""What this process may use of the machine, and how it is divided before the first request.

Memory comes from the smallest of the control group's limit (versions 1 and 2, every level up to the root) and the
kernel's MemAvailable; threads from physical cores, CPU affinity and the control group's CPU quota.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from legato.core.config import CacheConfig
from legato.core.control_groups import levels, number
from legato.core.errors import ConfigError

__all__ = ["MemoryBudget", "available_memory", "budget", "default_threads"]

_ROOT = Path("/")
_MIN_TOKENS = 1024  # the pool must hold a sequence of this length, or of the longest possible one


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """How the memory is divided. Sizes are bytes."""

    available: int
    parts: Mapping[str, int]  # what is taken beside the KV pool, by name
    block_bytes: int  # of all cache groups together
    num_blocks: int
    block_size: int
    max_position: int
    max_seqs: int

    @property
    def pool(self) -> int:
        return self.num_blocks * self.block_bytes

    def sequences(self, tokens: int) -> float:
        """How many sequences of this length the pool holds."""
        return self.num_blocks / -(-tokens // self.block_size)

    def rows(self) -> list[tuple[str, int]]:
        """The table that is printed at start: name, bytes."""
        taken = sum(self.parts.values()) + self.pool
        pool = f"KV pool, {self.num_blocks} blocks of {self.block_size} tokens"
        return [
            *self.parts.items(),
            (pool, self.pool),
            ("left free", self.available - taken),
            ("available", self.available),
        ]

    def fits(self) -> str:
        """One line: what the pool is good for."""
        lengths = sorted({self._common_length, self.max_position})
        counts = " or ".join(f"{self.sequences(n):,.1f} of {n:,} tokens" for n in lengths)
        return f"the KV pool holds {self.num_blocks * self.block_size:,} tokens: sequences at once: {counts}"

    def warning(self) -> str | None:
        """One line where the pool is too shallow for `max_seqs` sequences of common length; None where it is not."""
        held = self.sequences(self._common_length)
        if held >= self.max_seqs:
            return None
        taken = ", ".join(f"{name} {_mib(size)}" for name, size in self.parts.items())
        return (
            f"the KV pool holds {held:,.1f} sequences of {self._common_length:,} tokens, fewer than max_num_seqs "
            f"({self.max_seqs}): beyond that they wait, or are preempted and computed again. Of {_mib(self.available)} "
            f"there is {_mib(self.pool)} for the pool beside {taken}. Lower max_num_seqs, or give the pool more memory"
        )

    @property
    def _common_length(self) -> int:
        return min(_MIN_TOKENS, self.max_position)


def budget(
    parts: Mapping[str, int],
    block_bytes: int,
    cache: CacheConfig,
    *,
    max_seqs: int,
    max_position: int,
    available: int | None = None,
) -> MemoryBudget:
    """Sizes the KV pool. ConfigError with the figures where it would hold no sequence of useful length.

    parts: bytes taken beside the pool. block_bytes: one block of all cache groups. available: default as measured.
    Without an explicit size the pool takes what `memory_utilization` leaves, and not more than `max_seqs` sequences
    of `max_position` tokens can fill.
    """
    if available is None:
        available = available_memory()
    left = int(available * cache.memory_utilization) - sum(parts.values())
    full = max_seqs * -(-max_position // cache.block_size)
    if cache.num_blocks is not None:
        num_blocks = cache.num_blocks
    elif cache.kv_cache_memory is not None:
        num_blocks = cache.kv_cache_memory // block_bytes
    else:
        num_blocks = min(max(left, 0) // block_bytes, full)
    result = MemoryBudget(available, parts, block_bytes, num_blocks, cache.block_size, max_position, max_seqs)
    needed = -(-min(max_position, _MIN_TOKENS) // cache.block_size)
    explicit = cache.num_blocks is not None
    if num_blocks < (1 if explicit else needed) or result.pool > available - sum(parts.values()):
        raise ConfigError(_too_little(result, left, needed))
    return result


def _too_little(found: MemoryBudget, left: int, needed: int) -> str:
    parts = ", ".join(f"{name} {_mib(size)}" for name, size in found.parts.items())
    return (
        f"not enough memory: {_mib(found.available)} available; {parts}; the KV pool of {found.num_blocks} blocks "
        f"takes {_mib(found.pool)}, and {_mib(max(left, 0))} may be used for it; it needs at least "
        f"{_mib(needed * found.block_bytes)}. Lower max_num_batched_tokens, max_model_len or the size of the pool"
    )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"


def available_memory(root: Path = _ROOT) -> int:
    """Bytes that may still be used: MemAvailable, or less where a control group allows less."""
    meminfo = (root / "proc/meminfo").read_text().splitlines()
    figures = [int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemAvailable:")]
    for level in levels(root, "memory"):
        limit = number(level / "memory.max", level / "memory.limit_in_bytes")
        usage = number(level / "memory.current", level / "memory.usage_in_bytes")
        if limit is not None and usage is not None:
            figures.append(max(0, limit - max(0, usage - _reclaimable(level))))
    if not figures:
        raise ConfigError("cannot read the available memory: give num_blocks or kv_cache_memory")
    return min(figures)


def default_threads(root: Path = _ROOT) -> int:
    """Physical cores that this process may run on, within its CPU quota; at least 1."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        siblings = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        cores.add(siblings.read_text().strip() if siblings.exists() else str(cpu))
    return max(1, min([len(cores), *_cpu_quotas(root)]))


def _cpu_quotas(root: Path) -> Iterator[int]:
    """Whole CPUs of each level that has a quota."""
    for level in levels(root, "cpu"):
        if (level / "cpu.max").exists():
            quota, _, period = (level / "cpu.max").read_text().strip().partition(" ")
            if quota != "max":
                yield int(quota) // int(period)
        elif (quota_us := number(level / "cpu.cfs_quota_us")) and (period_us := number(level / "cpu.cfs_period_us")):
            yield quota_us // period_us


def _reclaimable(level: Path) -> int:
    """File pages that the kernel gives back under pressure, from memory.stat."""
    try:
        lines = (level / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.split()[0] in ("inactive_file", "active_file"))
