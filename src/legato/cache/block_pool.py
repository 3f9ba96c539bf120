"""The physical blocks of one cache group."""

from array import array

__all__ = ["BlockPool"]


class BlockPool:
    """A fixed number of blocks with reference counts. num_free + num_used == num_blocks at all times.

    A block is used while its count is above zero. Freed blocks are handed out again last in, first out, so that a
    pool that is never full touches little memory.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a block pool needs at least one block, got {num_blocks}")
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._refs = array("i", bytes(4 * num_blocks))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def references(self, block: int) -> int:
        """How many owners the block has; 0 when it is free."""
        return self._refs[block]

    def allocate(self) -> int:
        """A free block, now with one owner. IndexError when there is none: ask num_free first."""
        block = self._free.pop()
        self._refs[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add an owner to a block in use."""
        if self._refs[block] < 1:
            raise ValueError(f"block {block} is free and cannot be shared")
        self._refs[block] += 1

    def free(self, block: int) -> None:
        """Take one owner away; without owners the block is free."""
        if self._refs[block] < 1:
            raise ValueError(f"block {block} is already free")
        self._refs[block] -= 1
        if self._refs[block] == 0:
            self._free.append(block)
