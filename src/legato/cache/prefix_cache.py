"""Reuse of computed blocks by sequences that begin with the same tokens."""

from array import array
from collections.abc import Iterable
from functools import partial

from legato.cache.block_tables import BlockTables, KvBlocks
from legato.cache.host_tier import HostTier
from legato.cache.pins import Pins
from legato.cache.prefix import Digest, Prefix, PrefixIndex, sha256_digest
from legato.core.types import DEVICE_TIER, NO_BLOCK, BlockCopy, Breakpoint

__all__ = ["PrefixCache"]

Chain = list[Prefix]  # of one sequence: the root, then the prefix that ends with each full block, as far as known


class PrefixCache:
    """Keeps computed blocks by what they hold, and finds them again, in all groups of a KvBlocks.

    A hit ends at a block boundary. It holds in every group: a group with a window needs only the blocks that later
    rows can see. The last known token is never part of one, since computing it gives the next. What is evicted goes to
    the host tier, and comes back with a hit.
    """

    def __init__(
        self,
        blocks: KvBlocks,
        chunk_align: int,
        pins: Pins,
        host: HostTier | None = None,
        digest: Digest = sha256_digest,
    ) -> None:
        """`chunk_align`: hits end at multiples of it, as chunks do. `pins` and `host`: of the same blocks."""
        self.pins = pins
        self.host = host
        if host is not None:
            for group, pool in enumerate(blocks.pools):
                pool.on_evict = partial(host.spill, group)
        self._blocks = blocks
        self._chunk_align = chunk_align
        self._index = PrefixIndex(digest)

    def chain(self, adapter: int, salt: str) -> Chain:
        """The chain of a sequence of which no block is known yet."""
        return [self._index.root(adapter, salt)]

    def take(self, tables: BlockTables, chain: Chain, tokens: "array[int]") -> tuple[int, int]:
        """Fill empty `tables` with the longest hit on `tokens`.

        Returns the number of positions that it holds, and how many of them it owes to the host tier, from which the
        next plan restores them.
        """
        on_device = self._longest_hit(chain, tokens, None)
        length = on_device if self.host is None else self._longest_hit(chain, tokens, self.host)
        if length > on_device and not self._has_room(chain, length):
            length = on_device
        for group in range(len(self._blocks.pools)):
            self._fill(tables, chain, group, length)
        tables.length = length
        return length * self._blocks.block_size, (length - on_device) * self._blocks.block_size

    def _fill(self, tables: BlockTables, chain: Chain, group: int, length: int) -> None:
        """Fill one group's empty table with a hit; what the device has not is restored."""
        pool, table = self._blocks.pools[group], tables.groups[group]
        dropped = self._dropped(group, length)
        table.extend([NO_BLOCK] * dropped)
        missing = []
        for index in range(dropped, length):  # first what the device has, so that none of it is evicted for the rest
            if pool.holds(chain[index + 1]):
                table.append(pool.take(chain[index + 1]))
            else:
                table.append(NO_BLOCK)
                missing.append(index)
        if missing:
            assert self.host is not None
            prefixes = [chain[index + 1] for index in missing]
            for index, block in zip(missing, self.host.restore(group, prefixes, pool.allocate), strict=True):
                table[index] = block
                pool.keep(block, chain[index + 1])
        tables.dropped[group] = dropped

    def _has_room(self, chain: Chain, length: int) -> bool:
        """Whether every group has free blocks for what a hit would restore, without those that the hit itself needs."""
        for group, pool in enumerate(self._blocks.pools):
            held = [pool.block_of(prefix) for prefix in chain[self._dropped(group, length) + 1 : length + 1]]
            idle = sum(b is not None and pool.references(b) == 0 and not pool.is_pinned(b) for b in held)
            if held.count(None) > pool.num_free_unpinned - idle:
                return False
        return True

    def _dropped(self, group: int, length: int) -> int:
        """How many of the first blocks of a hit of `length` blocks no later row of a group sees."""
        return min(length, self._blocks.first_seen(group, length * self._blocks.block_size))

    def missing_after(self, chain: Chain, tokens: "array[int]", length: int) -> tuple[int, Prefix | None]:
        """What of a sequence is found behind its first `length` blocks: up to which length, and the prefix after that.

        None for that prefix where no other whole block could be part of a hit.
        """
        most = (len(tokens) - 1) // self._blocks.block_size
        for found in range(length, most):
            prefix = self._prefix(chain, tokens, found + 1)
            if not all(pool.holds(prefix) for pool in self._blocks.pools):
                return found, prefix
        return most, None

    def finds(self, chain: Chain, tokens: "array[int]", length: int) -> bool:
        """Whether the last of the first `length` blocks of a sequence is found, and could be part of a hit."""
        if length > (len(tokens) - 1) // self._blocks.block_size:
            return False
        prefix = self._prefix(chain, tokens, length)
        return all(
            pool.holds(prefix) or (self.host is not None and self.host.holds(group, prefix))
            for group, pool in enumerate(self._blocks.pools)
        )

    def filled(self, chain: Chain, tokens: "array[int]", start: int, end: int) -> list[Prefix]:
        """The prefixes that end with the blocks that positions [start, end) fill."""
        size = self._blocks.block_size
        return [self._prefix(chain, tokens, index + 1) for index in range(start // size, end // size)]

    def lost(self, copy: BlockCopy) -> bool:
        """A copy to or from the host tier was not made. Returns whether that makes a block of the device wrong."""
        assert self.host is not None
        self.host.lost(copy)
        if copy.target_tier != DEVICE_TIER:
            return False
        self._blocks.pools[copy.group].forget(copy.target)
        return True

    def keep(self, tables: BlockTables, chain: Chain, tokens: "array[int]", start: int, end: int) -> None:
        """Positions [start, end) are computed: the blocks that they fill can be found from now on."""
        size = self._blocks.block_size
        for index in range(start // size, end // size):
            prefix = self._prefix(chain, tokens, index + 1)
            for pool, blocks in zip(self._blocks.pools, tables.groups, strict=True):
                if blocks[index] != NO_BLOCK:
                    pool.keep(blocks[index], prefix)

    def pin(self, chain: Chain, tokens: "array[int]", breakpoints: Iterable[Breakpoint], start: int, end: int) -> int:
        """Positions [start, end) are computed or found: pin the prefixes whose last whole block ends among them.

        Returns the length of the longest that is pinned, in tokens; 0 for none.
        """
        size, longest = self._blocks.block_size, 0
        for point in breakpoints:
            length = point.length // size
            if start < length * size <= end:
                self._prefix(chain, tokens, length)
                if self.pins.pin(chain, length, point.ttl_s):
                    longest = length * size
        return longest

    def _longest_hit(self, chain: Chain, tokens: "array[int]", host: HostTier | None) -> int:
        """In blocks. A group needs an unbroken run of blocks from the first that is seen to the end of the hit.

        host: where blocks may lie beside the device; None for nowhere.
        """
        blocks, size = self._blocks, self._blocks.block_size
        runs = [0] * len(blocks.pools)
        longest = 0
        for length in range(1, (len(tokens) - 1) // size + 1):
            prefix = self._prefix(chain, tokens, length)
            complete = length * size % self._chunk_align == 0
            for group, pool in enumerate(blocks.pools):
                if pool.holds(prefix) or (host is not None and host.holds(group, prefix)):
                    runs[group] += 1
                elif blocks.windows[group] is None:
                    return longest
                else:
                    runs[group] = 0
                complete = complete and runs[group] >= length - blocks.first_seen(group, length * size)
            if complete:
                longest = length
        return longest

    def _prefix(self, chain: Chain, tokens: "array[int]", length: int) -> Prefix:
        """The prefix of `length` blocks; the chain is extended up to it."""
        size = self._blocks.block_size
        while len(chain) <= length:
            end = len(chain) * size
            chain.append(self._index.extend(chain[-1], tokens[end - size : end].tobytes()))
        return chain[length]
