"""Which blocks hold which positions of which sequence, in every cache group."""

from array import array
from collections import Counter
from collections.abc import Collection, Iterable

from legato.cache.block_pool import BlockPool
from legato.core.types import NO_BLOCK, CacheGroup

__all__ = ["BlockTables", "KvBlocks"]


class BlockTables:
    """The blocks of one sequence: `groups[g][i]` holds positions [i * block_size, (i + 1) * block_size) in group g.

    All groups have `length` entries. The first `dropped[g]` entries of group g are NO_BLOCK: no later row can see
    them through the group's window.
    """

    __slots__ = ("dropped", "groups", "length")

    def __init__(self, num_groups: int) -> None:
        self.groups = tuple(array("i") for _ in range(num_groups))
        self.dropped = [0] * num_groups
        self.length = 0


class KvBlocks:
    """The pools of all cache groups, and the rules for filling block tables from them.

    `max_positions`: how many positions one sequence can have when it has the cache to itself.
    `max_chunk`: the longest chunk that one sequence can always compute when it has the cache to itself.
    A group with window W bounds the chunk, not the sequence, unless its pool cannot hold W - 1 positions and a chunk of
    `chunk_align`; such a pool bounds the sequence, as if there was no window.
    """

    def __init__(
        self, groups: Iterable[CacheGroup], block_size: int, num_blocks: int, max_chunk: int, chunk_align: int
    ) -> None:
        self.block_size = block_size
        self.windows = tuple(group.window for group in groups)
        self.windowed = any(window is not None for window in self.windows)
        self.pools = tuple(BlockPool(num_blocks) for _ in self.windows)
        pool_chunks = [
            (num_blocks - 1) * block_size + 2 - window
            for window in self.windows
            if window is not None and (num_blocks - 1) * block_size + 2 - window >= chunk_align
        ]
        bounded_by_length = len(pool_chunks) < len(self.windows)
        self.max_positions = num_blocks * block_size if bounded_by_length else None
        self.max_chunk = min([max_chunk, *pool_chunks])
        self._most_blocks = [
            num_blocks
            if window is None
            else min(num_blocks, (window + self.max_chunk + block_size - 3) // block_size + 1)
            for window in self.windows
        ]

    def new_tables(self) -> BlockTables:
        return BlockTables(len(self.pools))

    def missing(self, tables: BlockTables, num_positions: int) -> list[int]:
        """Blocks per group that a sequence may still have to take before it has computed `num_positions`."""
        length = -(-num_positions // self.block_size)
        return [
            max(0, min(length, most) - (tables.length - dropped))
            for most, dropped in zip(self._most_blocks, tables.dropped, strict=True)
        ]

    def num_free(self, *, pinned: bool = True) -> list[int]:
        """Free blocks per group, with those that are pinned or without."""
        return [pool.num_free if pinned else pool.num_free_unpinned for pool in self.pools]

    def num_free_without(self, owners: Collection[BlockTables], *, pinned: bool) -> list[int]:
        """The same, once these sequences have given back their blocks."""
        free = self.num_free(pinned=pinned)
        for group, pool in enumerate(self.pools):
            owned = Counter(block for tables in owners for block in tables.groups[group][tables.dropped[group] :])
            free[group] += sum(
                pool.references(block) == count and (pinned or not pool.is_pinned(block))
                for block, count in owned.items()
            )
        return free

    def grow(self, tables: BlockTables, num_positions: int) -> bool:
        """Make `tables` cover positions below `num_positions`. False, and nothing taken, when blocks are short."""
        extra = -(-num_positions // self.block_size) - tables.length
        if extra <= 0:
            return True
        for pool in self.pools:
            if pool.num_free < extra:
                return False
        for pool, blocks in zip(self.pools, tables.groups, strict=True):
            for _ in range(extra):
                blocks.append(pool.allocate())
        tables.length += extra
        return True

    def first_seen(self, group: int, position: int) -> int:
        """Index of the first block that a row at `position` attends to: it sees positions above position - window."""
        window = self.windows[group]
        return 0 if window is None else max(0, position - window + 1) // self.block_size

    def drop_behind_windows(self, tables: BlockTables, next_position: int) -> None:
        """Free the blocks that no row at `next_position` or later attends to.

        Steps run in order, so a step still under way has read a block before a later step writes to it for its new
        owner.
        """
        for group, blocks in enumerate(tables.groups):
            first_seen = self.first_seen(group, next_position)
            for index in range(tables.dropped[group], min(first_seen, tables.length)):
                self.pools[group].free(blocks[index])
                blocks[index] = NO_BLOCK
                tables.dropped[group] = index + 1

    def release(self, tables: BlockTables) -> None:
        """Free all blocks of a sequence; its tables are empty afterwards."""
        for group, (pool, blocks) in enumerate(zip(self.pools, tables.groups, strict=True)):
            # The last block first, so that the next sequence gets them in this order again, and the cached blocks of a
            # prefix are evicted from its end.
            for index in range(tables.length - 1, tables.dropped[group] - 1, -1):
                pool.free(blocks[index])
            del blocks[:]
            tables.dropped[group] = 0
        tables.length = 0

    def append_slots(self, slots: "array[int]", tables: BlockTables, group: int, start: int, end: int) -> None:
        """Append the KV slots of positions [start, end) to `slots`."""
        size = self.block_size
        blocks = tables.groups[group]
        if end - start == 1:
            slots.append(blocks[start // size] * size + start % size)
            return
        while start < end:
            index = start // size
            stop = min(end, (index + 1) * size)
            shift = (blocks[index] - index) * size
            slots.extend(range(start + shift, stop + shift))
            start = stop

    def slots_of(self, tables: BlockTables, num_positions: int) -> tuple[int, int]:
        """(allocated, filled) KV slots of a sequence that has computed `num_positions`, over all groups."""
        allocated = filled = 0
        for dropped in tables.dropped:
            allocated += (tables.length - dropped) * self.block_size
            filled += max(0, num_positions - dropped * self.block_size)
        return allocated, filled

    def usage(self) -> float:
        """Share of the fullest pool that is in use, 0 to 1."""
        return max((pool.num_used / pool.num_blocks for pool in self.pools), default=0.0)
