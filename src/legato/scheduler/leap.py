"""Several steps at once, while they would only repeat one another.

A step is steady when every running sequence decodes in it and no other can enter. The steps after it are the same, one
token further each, until a sequence ends, a request comes, or blocks run out. The first of them may be the step that
computes the last rows of prompts. An executor that needs no plan for each of them (the simulated one) may do them in
one go.
"""

from array import array

from legato.core.types import TokenEvent
from legato.scheduler.commit import commit_token
from legato.scheduler.ledger import Ledger
from legato.scheduler.plan import Entry
from legato.scheduler.state import State

__all__ = ["commit_steady", "steady_steps"]


def steady_steps(ledger: Ledger, entries: list[Entry]) -> int:
    """How many steps, beginning with the planned one, are sure to give each running sequence one token, and no more.

    1 where nothing is sure. A sequence that ends by length does so in the last of them, and nothing else happens
    before: those who wait cannot enter, since places and blocks only become fewer.
    """
    blocks = ledger.blocks
    if ledger.policy.pads or len(entries) != len(ledger.running) or blocks.windowed:
        return 1
    waiting = len(ledger.policy.queue) > 0
    if waiting and _may_turn(ledger):
        return 1
    if any(pool.num_pinned for pool in blocks.pools):  # pins end by time, and who waits may enter then
        return 1
    if not all(entry.output >= 0 and _foreseeable(entry, waiting) for entry in entries):
        return 1
    steps = min(entry.sequence.max_tokens - entry.sequence.num_tokens for entry in entries)
    free = min(blocks.num_free())
    while steps > 1 and len(entries) * (steps // blocks.block_size + 1) > free:  # else there are enough for any
        if sum(max(blocks.missing(e.sequence.tables, _end(e, steps))) for e in entries) <= free:
            break
        steps //= 2
    return steps


def _may_turn(ledger: Ledger) -> bool:
    """Whether one that waits could enter though places and blocks only become fewer.

    Because it has waited longer, and takes a running sequence's place; or because another, smaller one is first now.
    """
    return ledger.policy.evicts or (ledger.policy.reorders and ledger.places_taken < ledger.limits.max_places)


def _foreseeable(entry: Entry, waiting: bool) -> bool:
    """Whether only its length ends the sequence, and nobody asks for more than its tokens.

    Blocks of a prompt may be what one that waits begins with, or be pinned when they are computed.
    """
    sequence, request = entry.sequence, entry.sequence.request
    if entry.num_rows > 1 and (waiting or request.breakpoints):
        return False
    plain = sequence.scores is None and sequence.matcher is None
    return plain and not sequence.end_ids and request.params.logprobs is None and request.params.max_tokens != 0


def _end(entry: Entry, steps: int) -> int:
    """The position after those that a sequence has computed once so many steps are done."""
    return entry.start + entry.num_rows + steps - 1


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
    for entry, made in live:
        if not ledger.blocks.grow(entry.sequence.tables, _end(entry, len(made))):
            request_id = entry.sequence.request.request_id
            raise ValueError(f"{len(made)} steps were not steady: request {request_id} lacks blocks")
    events = []
    for entry, made in live:
        sequence = entry.sequence
        first = sequence.num_tokens
        sequence.num_computed = _end(entry, len(made))
        sequence.tokens.extend(made[:-1])
        sequence.num_tokens += len(made) - 1
        ledger.policy.sampled(sequence, len(made) - 1)
        ledger.keep_prefix(sequence, entry.start, sequence.num_computed)
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
