"""Reuse of computed blocks by sequences that begin with the same tokens."""

from array import array
from collections.abc import Iterable

from legato.cache.block_tables import BlockTables, KvBlocks
from legato.cache.pins import Pins
from legato.cache.prefix import Digest, Prefix, PrefixIndex, sha256_digest
from legato.core.types import NO_BLOCK, Breakpoint

__all__ = ["PrefixCache"]

Chain = list[Prefix]  # of one sequence: the root, then the prefix that ends with each full block, as far as known


class PrefixCache:
    """Keeps computed blocks by what they hold, and finds them again, in all groups of a KvBlocks.

    A hit ends at a block boundary. It holds in every group: a group with a window needs only the blocks that later
    rows can see. The last known token is never part of one, since computing it gives the next.
    """

    def __init__(self, blocks: KvBlocks, chunk_align: int, pins: Pins, digest: Digest = sha256_digest) -> None:
        """`chunk_align`: hits end at multiples of it, as chunks do. `pins`: over the same blocks."""
        self.pins = pins
        self._blocks = blocks
        self._chunk_align = chunk_align
        self._index = PrefixIndex(digest)

    def chain(self, adapter: int, salt: str) -> Chain:
        """The chain of a sequence of which no block is known yet."""
        return [self._index.root(adapter, salt)]

    def take(self, tables: BlockTables, chain: Chain, tokens: "array[int]") -> int:
        """Fill empty `tables` with the longest hit on `tokens`. Returns the number of positions that it holds."""
        blocks = self._blocks
        length = self._longest_hit(chain, tokens)
        for group, pool in enumerate(blocks.pools):
            dropped = min(length, blocks.first_seen(group, length * blocks.block_size))
            tables.groups[group].extend([NO_BLOCK] * dropped)
            tables.groups[group].extend(pool.take(chain[index + 1]) for index in range(dropped, length))
            tables.dropped[group] = dropped
        tables.length = length
        return length * blocks.block_size

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

    def _longest_hit(self, chain: Chain, tokens: "array[int]") -> int:
        """In blocks. A group needs an unbroken run of blocks from the first that is seen to the end of the hit."""
        blocks, size = self._blocks, self._blocks.block_size
        runs = [0] * len(blocks.pools)
        longest = 0
        for length in range(1, (len(tokens) - 1) // size + 1):
            prefix = self._prefix(chain, tokens, length)
            complete = length * size % self._chunk_align == 0
            for group, pool in enumerate(blocks.pools):
                if pool.holds(prefix):
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
