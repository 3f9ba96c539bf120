"""The physical blocks of one cache group."""

from array import array
from collections import OrderedDict
from collections.abc import Callable

from legato.cache.prefix import Prefix

__all__ = ["BlockPool"]


class BlockPool:
    """A fixed number of blocks with reference counts. num_free + num_used == num_blocks at all times.

    A block is used while its count is above zero. A free block is blank or cached: a cached one still holds a known
    prefix. Blank blocks are handed out first, the last freed before the others, so that a pool that is never full
    touches little memory; then cached ones, the least recently used before the others; and those that are pinned too
    only when no other is free. Every operation is O(1).
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a block pool needs at least one block, got {num_blocks}")
        self.num_blocks = num_blocks
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # by the time they were freed; without the pinned ones
        self._cached_pinned: OrderedDict[int, None] = OrderedDict()
        self._pins: set[int] = set()  # pinned blocks, free or used
        self.on_evict: Callable[[int, Prefix], None] = _ignore  # a cached block is handed out: what it held
        self._refs = array("i", bytes(4 * num_blocks))
        self._held: list[Prefix | None] = [None] * num_blocks  # what each block holds, if that is known
        self._holder: dict[Prefix, int] = {}  # the inverse of _held

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._cached) + len(self._cached_pinned)

    @property
    def num_free_unpinned(self) -> int:
        return len(self._blank) + len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """Free blocks that hold a known prefix."""
        return len(self._cached) + len(self._cached_pinned)

    @property
    def num_pinned(self) -> int:
        """Pinned blocks, free or used."""
        return len(self._pins)

    def references(self, block: int) -> int:
        """How many owners the block has; 0 when it is free."""
        return self._refs[block]

    def holds(self, prefix: Prefix) -> bool:
        """Whether a block, used or free, holds this prefix."""
        return prefix in self._holder

    def block_of(self, prefix: Prefix) -> int | None:
        """The block, used or free, that holds this prefix."""
        return self._holder.get(prefix)

    def allocate(self) -> int:
        """A free block, now with one owner. IndexError when there is none: ask num_free first."""
        cached = self._cached or self._cached_pinned
        if self._blank or not cached:
            block = self._blank.pop()
        else:
            block = next(iter(cached))
            self.on_evict(block, self._strike_out(block))
        self._refs[block] = 1
        return block

    def take(self, prefix: Prefix) -> int:
        """Add an owner to the block that holds this prefix. KeyError when there is none."""
        block = self._holder[prefix]
        if self._refs[block] == 0:
            del self._queue(block)[block]
        self._refs[block] += 1
        return block

    def keep(self, block: int, prefix: Prefix) -> None:
        """A used block now holds this prefix. If another holds it too, that one stays the one to be found."""
        if self._refs[block] < 1:
            raise ValueError(f"block {block} is free and holds nothing")
        if self._held[block] is None and prefix not in self._holder:
            self._held[block] = prefix
            self._holder[prefix] = block

    def forget(self, block: int) -> None:
        """What a block holds, used or free, is not what it was kept for: it cannot be found any more."""
        if self._held[block] is not None:
            self._strike_out(block)
            if self._refs[block] == 0:
                self._blank.append(block)

    def free(self, block: int) -> None:
        """Take one owner away; without owners the block is free."""
        if self._refs[block] < 1:
            raise ValueError(f"block {block} is already free")
        self._refs[block] -= 1
        if self._refs[block] == 0:
            if self._held[block] is None:
                self._blank.append(block)
            else:
                self._queue(block)[block] = None

    def is_pinned(self, block: int) -> bool:
        return block in self._pins

    def pin(self, block: int) -> None:
        """Evict this block, which holds a known prefix, after all that are not pinned. Its eviction ends the pin."""
        if self._held[block] is None:
            raise ValueError(f"block {block} holds no known prefix")
        self._pins.add(block)
        if block in self._cached:
            del self._cached[block]
            self._cached_pinned[block] = None

    def unpin(self, block: int) -> None:
        """End the pin of a block, if it has one. A free one counts as just used."""
        self._pins.discard(block)
        if block in self._cached_pinned:
            del self._cached_pinned[block]
            self._cached[block] = None

    def _strike_out(self, block: int) -> Prefix:
        """Take the block that holds a known prefix from all lists but `_blank`, where it is not. Returns the prefix."""
        self._queue(block).pop(block, None)
        self._pins.discard(block)
        prefix = self._held[block]
        assert prefix is not None
        del self._holder[prefix]
        self._held[block] = None
        return prefix

    def _queue(self, block: int) -> OrderedDict[int, None]:
        """Where a block that holds a known prefix waits while it is free."""
        return self._cached_pinned if block in self._pins else self._cached


def _ignore(block: int, prefix: Prefix) -> None: ...
