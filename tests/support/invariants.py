"""What must hold of a scheduler between any two calls."""

from collections import Counter

from legato.core.types import NO_BLOCK
from legato.scheduler.scheduler import Scheduler
from legato.scheduler.state import State

__all__ = ["check_invariants"]


def check_invariants(scheduler: Scheduler) -> None:
    ledger = scheduler._ledger
    live = [sequence for sequences in ledger.sequences.values() for sequence in sequences]
    inside = [*ledger.running, *ledger.held]
    running = set(ledger.running)
    outside = [sequence for sequence in live if sequence not in running]

    assert all(sequence.state is State.RUNNING for sequence in ledger.running)
    assert all(sequence.state in (State.WAITING, State.PREEMPTED) for sequence in outside)
    assert all(sequence.state is State.FINISHED for sequence in ledger.held)
    assert len(ledger.policy.queue) == len(outside)
    assert ledger.policy.queue.num_prompt_tokens == sum(sequence.num_prompt for sequence in outside)
    assert not ledger.held or ledger.running, "places are held without a batch"

    ranks = [sequence.rank for sequence in ledger.running]
    assert ranks == sorted(ranks), "running sequences are in the order of service"
    assert scheduler._last_step.rows <= ledger.limits.max_rows, "the budget is never exceeded"

    slots = [sequence.slot for sequence in inside]
    assert len(set(slots)) == len(slots) == ledger.places_taken <= ledger.limits.max_places
    assert all(0 <= slot < ledger.limits.max_places for slot in slots)
    assert all(sequence.slot == -1 and sequence.num_computed == 0 for sequence in outside)
    assert all(sequence.tables.length == 0 for sequence in outside)
    for sequence in live:
        most = sequence.num_padding or sequence.num_tokens
        assert sequence.num_computed <= most
        assert sequence.num_tokens < sequence.max_tokens
        assert sequence.num_tokens == len(sequence.tokens or sequence.request.prompt)

    for group, pool in enumerate(ledger.blocks.pools):
        owned = [block for sequence in inside for block in sequence.tables.groups[group] if block != NO_BLOCK]
        owners = Counter(owned)
        assert [pool.references(block) for block in range(pool.num_blocks)] == [
            owners[block] for block in range(pool.num_blocks)
        ], "a block's references are the sequences that own it"
        assert len(owners) == pool.num_used
        cached = [*pool._cached, *pool._cached_pinned]
        assert all(owners[block] == 0 for block in (*pool._blank, *cached))
        assert len({*pool._blank, *cached}) == len(pool._blank) + pool.num_cached == pool.num_free
        assert pool.num_free + pool.num_used == pool.num_blocks
        held = {block: prefix for block, prefix in enumerate(pool._held) if prefix is not None}
        assert {prefix: block for block, prefix in held.items()} == pool._holder, "one block per prefix"
        assert held.keys().isdisjoint(pool._blank)
        assert held.keys() >= {*cached, *pool._pins}
        assert pool._pins.isdisjoint(pool._cached)
        assert pool._pins.issuperset(pool._cached_pinned)
        if ledger._prefixes is not None:
            pins = ledger._prefixes.pins
            assert pool.num_pinned <= pins._budgets[group], "pins stay within their budget"
            ends = [block for by_block in pins._ends[group].values() for block in by_block]
            assert len(set(ends)) == len(ends)
            assert pool._pins <= set(ends), "every pin has an end"

    stats = scheduler.stats()
    assert (stats.running, stats.waiting) == (len(ledger.running), len(outside))
    assert 0 <= stats.kv_waste < 1
    assert 0 <= stats.kv_usage <= 1
