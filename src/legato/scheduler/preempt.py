"""Make room when blocks run out."""

from legato.scheduler.ledger import Ledger
from legato.scheduler.state import Sequence

__all__ = ["take_blocks"]


def take_blocks(ledger: Ledger, sequence: Sequence, num_positions: int) -> bool:
    """Give a running sequence blocks for `num_positions` positions, preempting those served after it if it must.

    The victim is the running sequence that the policy serves last (`Policy.rank`), so whoever is first always gets on
    and in the end all do. When it may come back: `legato.scheduler.admit`.
    Preemption is by recomputation: the victim gives back its place and blocks at once, and is resumed with its tokens.
    Counter-based sampling makes the tokens that follow the same.

    False: the sequence itself was served last, and is back in the queue.
    """
    while not ledger.blocks.grow(sequence.tables, num_positions):
        victim = ledger.running[-1]
        ledger.evict(victim)
        if victim is sequence:
            return False
    return True
