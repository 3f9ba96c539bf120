"""Several steps at once, while they would only repeat one another.

A step is steady when every running sequence decodes in it and no other can enter. The steps after it are the same, one
token further each, until a sequence ends, a request comes, or blocks run out. An executor that needs no plan for each
of them (the simulated one) may do them in one go.
"""

from array import array

from legato.core.types import TokenEvent
from legato.scheduler.commit import commit_token
from legato.scheduler.ledger import Ledger
from legato.scheduler.plan import Entry
from legato.scheduler.state import State

__all__ = ["commit_steady", "steady_steps"]


def steady_steps(ledger: Ledger, entries: list[Entry]) -> int:
    """How many steps, beginning with the planned one, are sure to differ by one token per sequence only.

    1 where nothing is sure. A sequence that ends by length does so in the last of them, and nothing else happens
    before: those who wait cannot enter, since places and blocks only become fewer.
    """
    blocks = ledger.blocks
    if ledger.policy.pads or len(entries) != len(ledger.running) or any(w is not None for w in blocks.windows):
        return 1
    if len(ledger.policy.queue) > 0 and _may_turn(ledger):
        return 1
    if any(pool.num_pinned for pool in blocks.pools):  # pins end by time, and who waits may enter then
        return 1
    if not all(entry.num_rows == 1 and entry.output >= 0 and _foreseeable(entry) for entry in entries):
        return 1
    steps = min(entry.sequence.max_tokens - entry.sequence.num_tokens for entry in entries)
    free = min(blocks.num_free())
    while steps > 1 and sum(max(blocks.missing(e.sequence.tables, e.start + steps)) for e in entries) > free:
        steps //= 2
    return steps


def _may_turn(ledger: Ledger) -> bool:
    """Whether one that waits could enter though places and blocks only become fewer.

    Because it has waited longer, and takes a running sequence's place; or because another, smaller one is first now.
    """
    return ledger.policy.evicts or (ledger.policy.reorders and ledger.places_taken < ledger.limits.max_places)


def _foreseeable(entry: Entry) -> bool:
    """Whether only its length ends the sequence, and nobody asks for more than its tokens."""
    sequence, params = entry.sequence, entry.sequence.request.params
    plain = sequence.scores is None and sequence.matcher is None
    return plain and not sequence.end_ids and params.logprobs is None and params.max_tokens != 0


def commit_steady(ledger: Ledger, entries: list[Entry], tokens: "list[array[int]]") -> list[TokenEvent]:
    """Append to each sequence its tokens, one for each step done; one event per sequence.

    ValueError: more steps than were steady.
    """
    live = [
        (entry, made)
        for entry, made in zip(entries, tokens, strict=True)
        if entry.sequence.run == entry.run and entry.sequence.state is State.RUNNING
    ]
    # All of them take their blocks before the first ends and gives some back, as they would step by step.
    for (sequence, _, start, *_), made in live:
        if not ledger.blocks.grow(sequence.tables, start + len(made)):
            raise ValueError(f"{len(made)} steps were not steady: request {sequence.request.request_id} lacks blocks")
    events = []
    for (sequence, _, start, *_), made in live:
        first = sequence.num_tokens
        sequence.num_computed = start + len(made)
        sequence.tokens.extend(made[:-1])
        sequence.num_tokens += len(made) - 1
        ledger.policy.sampled(sequence, len(made) - 1)
        ledger.keep_prefix(sequence, start, start + len(made))
        finish = commit_token(ledger, sequence, made[-1])
        events.append(
            TokenEvent(
                sequence.request.request_id,
                sequence.choice,
                tuple(made),
                finish=finish,
                num_cached=sequence.num_cached if first == sequence.num_prompt else 0,
            )
        )
    return events
