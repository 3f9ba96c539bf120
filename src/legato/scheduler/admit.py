"""Which waiting sequences enter the batch."""

from legato.scheduler.ledger import Ledger
from legato.scheduler.state import Sequence

__all__ = ["admit"]


def admit(ledger: Ledger) -> None:
    """Give places to sequences from the head of the queue, as long as there is room for all of what they need.

    Blocks are not taken here but as chunks are computed. A sequence enters only if the blocks that it and all running
    sequences may yet take to reach their reserve are free now, so no two of them can wait for each other's. Strictly
    in order: the first that does not fit keeps the others waiting, so that it cannot starve.
    """
    queue, policy, limits, blocks = ledger.policy.queue, ledger.policy, ledger.limits, ledger.blocks
    if not queue or ledger.places_taken == limits.max_places:
        return
    batch_open = ledger.places_taken == 0
    rows_wanted = 0
    free = blocks.num_free()
    for sequence in ledger.running:
        rows_wanted += min(sequence.num_tokens - sequence.num_computed, limits.max_chunk)
        reserve = policy.positions_to_reserve(sequence, blocks.block_size)
        for group, count in enumerate(blocks.missing(sequence.tables, reserve)):
            free[group] -= count
    entered: list[Sequence] = []
    while ledger.places_taken < limits.max_places and policy.may_admit(batch_open, rows_wanted, limits.max_rows):
        first = queue.first()
        if first is None:
            break
        needed = blocks.missing(first.tables, policy.positions_to_reserve(first, blocks.block_size))
        if any(count > rest for count, rest in zip(needed, free, strict=True)):
            break
        free = [rest - count for count, rest in zip(needed, free, strict=True)]
        rows_wanted += min(first.num_tokens, limits.max_chunk)
        ledger.admit(first)
        entered.append(first)
    if policy.pads and entered:
        longest = max(sequence.num_tokens for sequence in entered)
        for sequence in entered:
            sequence.num_padding = longest - sequence.num_tokens
