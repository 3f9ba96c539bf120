"""Which waiting sequences enter the batch."""

from legato.scheduler.ledger import Ledger
from legato.scheduler.state import Sequence

__all__ = ["admit"]


def admit(ledger: Ledger) -> None:
    """Give places to sequences from the head of the queue, as long as there is room for all of what they need.

    Blocks are not taken here but as chunks are computed; only those of a computed prefix are. A sequence enters only if
    the blocks that it and all running sequences may yet take to reach their reserve are free now, so no two of them can
    wait for each other's. Strictly in order: the first that does not fit keeps the others waiting, so that it cannot
    starve. Pinned blocks count as free only while nothing runs: to run one more at once is no reason to end a pin.
    """
    queue, policy, limits, blocks = ledger.policy.queue, ledger.policy, ledger.limits, ledger.blocks
    if not queue or ledger.places_taken == limits.max_places:
        return
    batch_open = ledger.places_taken == 0
    rows_wanted = 0
    reserved = [0] * len(blocks.pools)
    for sequence in ledger.running:
        rows_wanted += min(sequence.num_tokens - sequence.num_computed, limits.max_chunk)
        positions = policy.positions_to_reserve(sequence, blocks.block_size)
        reserved = _sum(reserved, blocks.missing(sequence.tables, positions))
    entered: list[Sequence] = []
    while ledger.places_taken < limits.max_places and policy.may_admit(batch_open, rows_wanted, limits.max_rows):
        first = queue.first()
        if first is None:
            break
        ledger.take_prefix(first)
        positions = policy.positions_to_reserve(first, blocks.block_size)
        wanted = _sum(reserved, blocks.missing(first.tables, positions))
        free_blocks = blocks.num_free(pinned=not ledger.running)
        if any(count > free for count, free in zip(wanted, free_blocks, strict=True)):
            ledger.give_back_blocks(first)
            break
        reserved = wanted
        rows_wanted += min(first.num_tokens - first.num_computed, limits.max_chunk)
        ledger.admit(first)
        entered.append(first)
    if policy.pads and entered:
        longest = max(sequence.num_tokens for sequence in entered)
        for sequence in entered:
            sequence.num_padding = longest - sequence.num_tokens


def _sum(left: list[int], right: list[int]) -> list[int]:
    return [a + b for a, b in zip(left, right, strict=True)]
