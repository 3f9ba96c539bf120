"""What the scheduler says about itself: for /metrics, logs and tests."""

from dataclasses import dataclass
from typing import NamedTuple

from legato.scheduler.ledger import Ledger

__all__ = ["Move", "SchedulerStats", "StepCounts", "measure"]


class Move(NamedTuple):
    """A sequence entered the batch, or was preempted."""

    request_id: str
    choice: int
    entered: bool
    at_s: float  # by the scheduler's clock


@dataclass(frozen=True, slots=True)
class StepCounts:
    """What the last planned step held. `padding` rows are included in `rows`."""

    rows: int = 0
    sequences: int = 0
    outputs: int = 0
    padding: int = 0


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A snapshot. Sequences, not requests, are counted: a request with n choices counts n times."""

    running: int
    waiting: int  # preempted ones included
    waiting_tokens: int  # prompt tokens of those that wait
    slots_used: int  # places taken; more than `running` where policy static holds them
    slots_total: int
    blocks_used: int  # over all cache groups
    blocks_cached: int  # free ones that hold a known prefix
    blocks_total: int
    blocks_pinned: int  # used or free ones that a cache hint keeps
    blocks_host: int  # in the host tier
    host_copies_lost: int  # to and from it, which could not be made, since the start
    kv_usage: float  # share of the fullest pool, 0 to 1
    kv_waste: float  # unused slots in allocated blocks / allocated slots, 0 to 1
    prefix_queries: int  # prompt tokens looked up in the prefix cache since the start
    prefix_hits: int  # and those found
    prefix_hits_host: int  # and of these, those that came back from the host tier
    preemptions: int  # since the start
    corrupted: int  # sequences that ended because of NaN or Inf, since the start
    steps: int  # planned since the start
    last_step: StepCounts
    oldest_wait_s: float  # how long the head of the queue has waited since it arrived; 0 when none waits


def measure(ledger: Ledger, steps: int, last_step: StepCounts, now_s: float) -> SchedulerStats:
    """Count. O(places), whatever waits."""
    blocks = ledger.blocks
    allocated = filled = 0
    for sequence in (*ledger.running, *ledger.held):
        filled_to = min(sequence.num_computed, sequence.num_tokens)  # what padding wrote serves nobody
        own_allocated, own_filled = blocks.slots_of(sequence.tables, filled_to)
        allocated += own_allocated
        filled += own_filled
    first = ledger.policy.queue.first()
    return SchedulerStats(
        running=len(ledger.running),
        waiting=len(ledger.policy.queue),
        waiting_tokens=ledger.policy.queue.num_prompt_tokens,
        slots_used=ledger.places_taken,
        slots_total=ledger.limits.max_places,
        blocks_used=sum(pool.num_used for pool in blocks.pools),
        blocks_cached=sum(pool.num_cached for pool in blocks.pools),
        blocks_total=sum(pool.num_blocks for pool in blocks.pools),
        blocks_pinned=sum(pool.num_pinned for pool in blocks.pools),
        blocks_host=ledger.host_blocks,
        host_copies_lost=ledger.host_copies_lost,
        kv_usage=blocks.usage(),
        kv_waste=1 - filled / allocated if allocated else 0.0,
        prefix_queries=ledger.prefix_queries,
        prefix_hits=ledger.prefix_hits,
        prefix_hits_host=ledger.prefix_hits_host,
        preemptions=ledger.num_preemptions,
        corrupted=ledger.num_corrupted,
        steps=steps,
        last_step=last_step,
        oldest_wait_s=now_s - first.request.arrival_s if first else 0.0,
    )
