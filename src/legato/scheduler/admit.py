"""Which waiting sequences enter the batch."""

from legato.scheduler.ledger import Ledger
from legato.scheduler.state import Sequence, State

__all__ = ["GUARANTEED_STEPS", "admit"]

GUARANTEED_STEPS = 64  # of a sequence that was preempted, once it runs again


def admit(ledger: Ledger) -> None:
    """Give places to sequences from the head of the queue, as long as there is room for all of what they need.

    Blocks are not taken here but as chunks are computed; only those of a computed prefix are. A sequence enters only if
    the blocks that it and all running sequences may yet take to reach their reserve are free now, so no two of them can
    wait for each other's. Strictly in order: the first that does not fit keeps the others waiting, so that it cannot
    starve. Pinned blocks count as free only while nothing runs: to run one more at once is no reason to end a pin.

    The reserve is all that is known of a sequence and one block more, so that a newcomer does not push others out at
    once. For one that was preempted it is GUARANTEED_STEPS tokens more, its own and everybody's: so many steps it runs
    before it can be preempted again, unless by one that the policy serves before it.
    """
    queue, policy, limits = ledger.policy.queue, ledger.policy, ledger.limits
    if not queue or (ledger.places_taken == limits.max_places and not policy.evicts):
        return
    batch_open = ledger.places_taken == 0
    room = _Room(ledger)
    entered: list[Sequence] = []
    while (first := queue.first()) is not None and policy.may_admit(
        batch_open, room.rows_before(first), limits.max_rows
    ):
        if (ledger.places_taken == limits.max_places or ledger.still_lacks_room(first)) and not room.victims(first):
            break
        ledger.take_prefix(first)
        if not room.fits(first) and not room.evict_for(first):
            ledger.put_off(first)
            break
        ledger.admit(first)
        room.count_in(first)
        entered.append(first)
    if policy.pads and entered:
        ledger.padded_length = _padded_length(entered, limits.context)
        longest = max(sequence.num_prompt for sequence in entered)
        for sequence in entered:
            sequence.num_padding = longest - sequence.num_prompt


def _padded_length(batch: list[Sequence], context: int) -> int:
    """Positions of each of a batch that is padded to its longest prompt and runs until its longest answer may end.

    No token behind the context is known, and the last is not computed.
    """
    longest_prompt = max(sequence.num_prompt for sequence in batch)
    longest_answer = max(sequence.max_tokens - sequence.num_prompt for sequence in batch)
    return min(longest_prompt + longest_answer, context) - 1


class _Room:
    """What running sequences leave to those that wait, while one step is planned."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._rows = 0  # that running sequences could fill in this step
        self._reserved: dict[int, list[int]] = {}  # blocks per group that they may yet take, by their spare tokens
        self._count()

    def rows_before(self, first: Sequence) -> int:
        """Rows that those served before `first` could fill in this step."""
        ledger = self._ledger
        rank = ledger.policy.rank(first, ledger.now_s)
        if not ledger.running or ledger.running[-1].rank <= rank:
            return self._rows
        return sum(self._rows_wanted(sequence) for sequence in ledger.running if sequence.rank <= rank)

    def fits(self, first: Sequence) -> bool:
        """Whether there is a place for it, and blocks for it and all that run. It has those of its prefix already."""
        ledger, blocks = self._ledger, self._ledger.blocks
        if ledger.places_taken == ledger.limits.max_places:
            return False
        if ledger.policy.pads:
            return self._fits_padded(first)
        spare = self._spare(first)
        reserved = self._reserved.get(spare)
        if reserved is None:
            reserved = self._reserved[spare] = [0] * len(blocks.pools)
            for sequence in ledger.running:
                self._add(reserved, sequence, spare)
        wanted = self._add(reserved[:], first, spare)
        free = blocks.num_free(pinned=not ledger.running)
        return all(count <= left for count, left in zip(wanted, free, strict=True))

    def _fits_padded(self, first: Sequence) -> bool:
        """Whether there are blocks for the batch that now forms, with `first`, each of it as long as the longest."""
        ledger, blocks = self._ledger, self._ledger.blocks
        batch = [*ledger.running, first]
        wanted = blocks.missing(first.tables, _padded_length(batch, ledger.limits.context))
        return all(len(batch) * count <= free for count, free in zip(wanted, blocks.num_free(), strict=True))

    def victims(self, first: Sequence) -> list[Sequence]:
        """Running sequences that the policy lets `first` replace, in the order of service."""
        ledger = self._ledger
        if not ledger.policy.evicts:
            return []
        return [s for s in ledger.running if ledger.policy.may_evict(first, s, ledger.now_s)]

    def evict_for(self, first: Sequence) -> bool:
        """Preempt as many as it takes until `first` fits. False: there are no such, or not enough; then none was."""
        ledger = self._ledger
        if not (victims := self.victims(first)) or not self._fits_without(victims, first):
            return False
        while not self.fits(first):
            ledger.evict(victims.pop())
            self._count()
        return True

    def _fits_without(self, victims: list[Sequence], first: Sequence) -> bool:
        """Whether `first` fits once all of these are gone."""
        ledger, blocks = self._ledger, self._ledger.blocks
        gone = set(victims)
        stay = [sequence for sequence in ledger.running if sequence not in gone]
        wanted = [0] * len(blocks.pools)
        for sequence in (*stay, first):
            self._add(wanted, sequence, self._spare(first))
        free = blocks.num_free_without([victim.tables for victim in victims], pinned=not stay)
        return all(count <= left for count, left in zip(wanted, free, strict=True))

    def _spare(self, first: Sequence) -> int:
        """Tokens beyond those known for which everybody's blocks must be free when `first` enters."""
        return GUARANTEED_STEPS if first.state is State.PREEMPTED else self._ledger.blocks.block_size

    def count_in(self, sequence: Sequence) -> None:
        """It was admitted."""
        self._rows += self._rows_wanted(sequence)
        for spare, reserved in self._reserved.items():
            self._add(reserved, sequence, spare)

    def _count(self) -> None:
        self._rows = sum(map(self._rows_wanted, self._ledger.running))
        self._reserved.clear()

    def _rows_wanted(self, sequence: Sequence) -> int:
        return min(sequence.num_tokens - sequence.num_computed, self._ledger.limits.max_chunk)

    def _add(self, counts: list[int], sequence: Sequence, spare: int) -> list[int]:
        blocks = self._ledger.blocks
        missing = blocks.missing(sequence.tables, self._ledger.policy.positions_to_reserve(sequence, spare))
        for group, count in enumerate(missing):
            counts[group] += count
        return counts
