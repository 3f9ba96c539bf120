"""What must hold of a scheduler between any two calls."""

from legato.core.types import NO_BLOCK
from legato.scheduler.scheduler import Scheduler
from legato.scheduler.state import State

__all__ = ["check_invariants"]


def check_invariants(scheduler: Scheduler) -> None:
    ledger = scheduler._ledger
    live = [sequence for sequences in ledger.sequences.values() for sequence in sequences]
    inside = [*ledger.running, *ledger.held]
    outside = [sequence for sequence in live if sequence not in ledger.running]

    assert all(sequence.state is State.RUNNING for sequence in ledger.running)
    assert all(sequence.state in (State.WAITING, State.PREEMPTED) for sequence in outside)
    assert all(sequence.state is State.FINISHED for sequence in ledger.held)
    assert len(ledger.policy.queue) == len(outside)
    assert not ledger.held or ledger.running, "places are held without a batch"

    slots = [sequence.slot for sequence in inside]
    assert len(set(slots)) == len(slots) == ledger.places_taken <= ledger.limits.max_places
    assert all(0 <= slot < ledger.limits.max_places for slot in slots)
    assert all(sequence.slot == -1 and sequence.num_computed == 0 for sequence in outside)
    assert all(sequence.tables.length == 0 for sequence in outside)
    for sequence in live:
        assert sequence.num_computed <= sequence.num_tokens < sequence.max_tokens
        assert sequence.num_tokens == len(sequence.tokens or sequence.request.prompt)

    for group, pool in enumerate(ledger.blocks.pools):
        owned = [block for sequence in inside for block in sequence.tables.groups[group] if block != NO_BLOCK]
        assert len(set(owned)) == len(owned) == pool.num_used, "each used block has one owner"
        assert all(pool.references(block) == 1 for block in owned)
        assert pool.num_free + pool.num_used == pool.num_blocks

    stats = scheduler.stats()
    assert (stats.running, stats.waiting) == (len(ledger.running), len(outside))
    assert 0 <= stats.kv_waste < 1
    assert 0 <= stats.kv_usage <= 1
