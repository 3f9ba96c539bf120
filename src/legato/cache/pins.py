"""Pins: what a cache hint asked to keep stays cached for a time, within a budget of blocks."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from legato.cache.block_tables import KvBlocks
from legato.cache.prefix import Prefix

__all__ = ["Pins"]


class Pins:
    """Keeps the blocks of a prefix from being evicted before all others, until a time.

    The budget is a share of each pool. A prefix that does not fit into what is left of it is not pinned: nobody's pin
    ends because of another's. Blocks that several pinned prefixes have in common count once. A pin is only a place in
    the order of eviction: where no other block is free, pinned ones are handed out, and their pins are over.
    """

    def __init__(self, blocks: KvBlocks, share: float, clock: Callable[[], float]) -> None:
        self._blocks = blocks
        self._budgets = [int(share * pool.num_blocks) for pool in blocks.pools]
        self._clock = clock
        # Per group and time to live: block to the time when its pin ends. Pins of one time to live end in the order in
        # which they were made. A block may be evicted meanwhile; then its entry says nothing.
        self._ends: list[dict[float, OrderedDict[int, float]]] = [{} for _ in blocks.pools]

    def pin(self, chain: Sequence[Prefix], length: int, ttl_s: float) -> bool:
        """Pin the first `length` blocks of a chain for `ttl_s` seconds from now, or nothing: then False.

        A group with a window keeps only those that a row after them sees. False where a block is gone or does not fit.
        """
        wanted: list[list[int]] = []
        for group, pool in enumerate(self._blocks.pools):
            first = min(length, self._blocks.first_seen(group, length * self._blocks.block_size))
            found = [pool.block_of(prefix) for prefix in chain[first + 1 : length + 1]]
            held = [block for block in found if block is not None]
            new = sum(not pool.is_pinned(block) for block in held)
            if len(held) < length - first or pool.num_pinned + new > self._budgets[group]:
                return False
            wanted.append(held)
        end = self._clock() + ttl_s
        for group, held in enumerate(wanted):
            for block in held:
                self._pin(group, block, ttl_s, end)
        return True

    def expire(self) -> bool:
        """End the pins whose time is over. Whether there were any. O(1), and O(1) for each."""
        now, before = self._clock(), sum(pool.num_pinned for pool in self._blocks.pools)
        for pool, by_ttl in zip(self._blocks.pools, self._ends, strict=True):
            for ends in by_ttl.values():
                while ends and next(iter(ends.values())) <= now:
                    pool.unpin(ends.popitem(last=False)[0])
        return sum(pool.num_pinned for pool in self._blocks.pools) < before

    def _pin(self, group: int, block: int, ttl_s: float, end: float) -> None:
        pool = self._blocks.pools[group]
        for ends in self._ends[group].values():
            if block in ends:
                if pool.is_pinned(block) and ends[block] > end:
                    return
                del ends[block]
                break
        pool.pin(block)
        self._ends[group].setdefault(ttl_s, OrderedDict())[block] = end
