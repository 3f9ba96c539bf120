"""The host tier: where evicted blocks go, and come back from."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from legato.cache.prefix import Prefix
from legato.core.types import DEVICE_TIER, HOST_TIER, BlockCopy

__all__ = ["HostTier", "label_of", "label_size"]


def label_size(block_size: int) -> int:
    """Bytes of a label: two SHA-256 digests and the block's tokens."""
    return 2 * 32 + 4 * block_size


def label_of(prefix: Prefix) -> bytes:
    """What a block is stored under: the digests of its prefix and of the one before, and its own tokens."""
    assert prefix.parent is not None
    return prefix.digest + prefix.parent.digest + prefix.content


class HostTier:
    """Which blocks lie in the host tier's slots, and the copies that the next plan has to make.

    Each group has the same number of slots; the least recently used one is overwritten when all are full. A block stays
    here when it is restored, so that evicting it again costs nothing. An executor that cannot make a copy says so:
    `lost` then forgets what is not there. Where one could not be stored no other is; what lies here still comes back.
    """

    def __init__(self, num_groups: int, num_slots: int, found: Iterable[tuple[int, int, bytes]]) -> None:
        """found: group, slot and label of what lies there from before."""
        self._slots: list[OrderedDict[bytes, int]] = [OrderedDict() for _ in range(num_groups)]
        taken: list[set[int]] = [set() for _ in range(num_groups)]
        for group, slot, label in found:
            if label not in self._slots[group]:
                self._slots[group][label] = slot
                taken[group].add(slot)
        self._free = [[slot for slot in range(num_slots - 1, -1, -1) if slot not in slots] for slots in taken]
        self._copies: list[BlockCopy] = []
        self._stores = num_slots > 0
        self.num_lost = 0  # copies that were not made

    @property
    def num_blocks(self) -> int:
        """Blocks that lie here, over all groups."""
        return sum(map(len, self._slots))

    def holds(self, group: int, prefix: Prefix) -> bool:
        return label_of(prefix) in self._slots[group]

    def spill(self, group: int, block: int, prefix: Prefix) -> None:
        """The device's block is about to be reused: keep what it holds."""
        if not self._stores:
            return
        slots, label = self._slots[group], label_of(prefix)
        if label in slots:
            slots.move_to_end(label)
            return
        if not (self._free[group] or slots):
            return  # all that lies here is being restored
        slot = self._free[group].pop() if self._free[group] else slots.popitem(last=False)[1]
        slots[label] = slot
        self._copies.append(BlockCopy(group, DEVICE_TIER, block, HOST_TIER, slot, label))

    def restore(self, group: int, prefixes: Iterable[Prefix], allocate: Callable[[], int]) -> Iterator[int]:
        """Fill a block of the device with each of these prefixes, which lie here, and yield it.

        allocate: gives the blocks. It may evict others, which must not go to the slots that are to be read.
        """
        slots = self._slots[group]
        read = [(label, slots.pop(label)) for label in map(label_of, prefixes)]
        for label, slot in read:
            block = allocate()
            self._copies.append(BlockCopy(group, HOST_TIER, slot, DEVICE_TIER, block, label))
            yield block
        slots.update(read)

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """The copies since the last call, each handed out once. Their order matters: slots and blocks are reused."""
        copies = tuple(self._copies)
        self._copies.clear()
        return copies

    def lost(self, copy: BlockCopy) -> None:
        """This copy was not made."""
        self.num_lost += 1
        if copy.target_tier == HOST_TIER:
            self._stores = False
        slot = copy.target if copy.target_tier == HOST_TIER else copy.source
        if self._slots[copy.group].get(copy.label) == slot:
            del self._slots[copy.group][copy.label]
            self._free[copy.group].append(slot)
