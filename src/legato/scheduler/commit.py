"""Take a step's result into the sequences, and say what is new."""

from legato.core.types import FinishReason, PromptLogprobs, StepResult, TokenEvent
from legato.scheduler.ledger import Ledger
from legato.scheduler.plan import Entry
from legato.scheduler.state import Event, Sequence, State

__all__ = ["commit_result", "commit_token", "end_without_token", "refused_rows"]

FAULT = "the computation gave NaN or infinite values"
NO_TOKEN = "no token could be sampled"
NO_TOKEN_FITS = f"{NO_TOKEN}: the grammar allows none of those that the request's other fields leave"


def refused_rows(entries: list[Entry], result: StepResult) -> dict[int, bytes]:
    """Masks of the output rows whose token was sampled without one, and does not fit."""
    masks = {}
    for sequence, run, _, _, _, output, _ in entries:
        matcher = sequence.matcher
        if matcher is None or output < 0 or result.tokens[output] < 0 or sequence.run != run:
            continue
        if sequence.state is State.RUNNING and not matcher.fits(result.tokens[output]) and matcher.mask is not None:
            masks[output] = matcher.mask
    return masks


def commit_result(ledger: Ledger, entries: list[Entry], result: StepResult) -> list[TokenEvent]:
    """Append the sampled tokens, end what has reached an end, one event per sequence with news.

    Results for sequences that have ended or were preempted since the step was planned are dropped: they are neither
    shown nor billed, and a resumed sequence samples the same token again. Blocks that are full now are kept for others,
    but not those of a step in which a row of the sequence was faulty. A token that its grammar still does not allow is
    dropped, too: the next step computes its row again, and samples it with a mask.
    """
    events = []
    faulty = any(result.faults)
    for sequence, run, start, first_row, num_rows, output, scored in entries:
        if sequence.run != run or sequence.state is not State.RUNNING:
            continue
        if faulty and any(result.faults[first_row : first_row + num_rows]):
            ledger.num_corrupted += 1
            events.append(end_without_token(ledger, sequence, Event.ERROR, FAULT))
        elif output >= 0 and result.tokens[output] < 0:
            why = NO_TOKEN if sequence.matcher is None else NO_TOKEN_FITS
            failed = end_without_token(ledger, sequence, Event.ERROR, why)
            events.append(failed._replace(error_param=_narrowing_field(sequence)))
        elif output >= 0 and sequence.matcher is not None and not sequence.matcher.fits(result.tokens[output]):
            events += _sample_again(ledger, sequence, start, num_rows, sequence.matcher.failure)
        else:
            ledger.keep_prefix(sequence, start, start + num_rows)
            if sequence.scores is not None:
                _note_scores(sequence.scores, result, scored)
            if output >= 0:
                events.append(_commit_token(ledger, sequence, result, output))
    return events


def end_without_token(ledger: Ledger, sequence: Sequence, event: Event, error: str | None = None) -> TokenEvent:
    """End a sequence for a reason that is not a token of its own."""
    ledger.end(sequence, event)
    return TokenEvent(sequence.request.request_id, sequence.choice, (), finish=sequence.finish_reason, error=error)


def _sample_again(
    ledger: Ledger, sequence: Sequence, start: int, num_rows: int, failure: str | None
) -> list[TokenEvent]:
    """Take back the last of the rows, whose sampled token does not fit. An event where none fits."""
    ledger.keep_prefix(sequence, start, start + num_rows - 1)
    if failure is None:
        sequence.num_computed -= 1
        return []
    failed = end_without_token(ledger, sequence, Event.ERROR, failure)
    return [failed._replace(error_param=_grammar_field(sequence))]


def _note_scores(scores: PromptLogprobs, result: StepResult, scored: range) -> None:
    for output in scored:
        scores.append(result.logprobs[output], result.top_logprobs[output] if result.top_logprobs else ())


def commit_token(ledger: Ledger, sequence: Sequence, token: int) -> FinishReason | None:
    """Append a new token. How the sequence ended with it, if it did."""
    sequence.tokens.append(token)
    sequence.num_tokens += 1
    ledger.policy.sampled(sequence, 1)
    end = _end_after(sequence, token)
    if end is not None:
        ledger.end(sequence, end)
    return sequence.finish_reason


def _end_after(sequence: Sequence, token: int) -> Event | None:
    """How the sequence ends with its new token; None: it goes on. Its matcher sees all tokens but an end token."""
    if token in sequence.end_ids and sequence.num_tokens > sequence.min_end_position:
        return Event.STOP
    matcher = sequence.matcher
    if matcher is not None:
        matcher.accept(token)
        if matcher.failure is not None:
            return Event.ERROR
        if matcher.complete:
            return Event.STOP
    return Event.LENGTH if sequence.num_tokens == sequence.max_tokens else None


def _commit_token(ledger: Ledger, sequence: Sequence, result: StepResult, output: int) -> TokenEvent:
    request, params, position = sequence.request, sequence.request.params, sequence.num_tokens
    if params.max_tokens == 0:  # the prompt was to be scored, and no more
        return end_without_token(ledger, sequence, Event.LENGTH)._replace(prompt_logprobs=sequence.scores)
    token = result.tokens[output]
    finish = commit_token(ledger, sequence, token)
    event = TokenEvent(request.request_id, sequence.choice, (token,), finish=finish)
    if params.logprobs is not None:
        top = (result.top_logprobs[output],) if result.top_logprobs else ()
        event = event._replace(logprobs=(result.logprobs[output],), top_logprobs=top)
    if position == sequence.num_prompt:
        event = _first_event(sequence, event)
    return event if finish is None else _last_event(sequence, event, token)


def _first_event(sequence: Sequence, event: TokenEvent) -> TokenEvent:
    """An event with what is said once, with the first token."""
    scores, sequence.scores = sequence.scores, None
    return event._replace(
        num_cached=sequence.num_cached,
        prompt_logprobs=scores,
        num_restored=min(sequence.num_restored, sequence.num_cached),
        num_pinned=sequence.num_pinned,
    )


def _last_event(sequence: Sequence, event: TokenEvent, token: int) -> TokenEvent:
    """An event with what ended the sequence. Where its grammar was complete, no end token did."""
    matcher = sequence.matcher
    if event.finish is FinishReason.ERROR:
        assert matcher is not None
        return event._replace(error=matcher.failure, error_param=_grammar_field(sequence))
    if event.finish is FinishReason.STOP and (matcher is None or not matcher.complete):
        return event._replace(stop_token=token)
    return event


def _grammar_field(sequence: Sequence) -> str | None:
    grammar = sequence.request.params.grammar
    return None if grammar is None else grammar.param


def _narrowing_field(sequence: Sequence) -> str | None:
    """The field that leaves the fewest tokens to choose from; None: none forbids any."""
    params = sequence.request.params
    if params.grammar is None and params.allowed_token_ids:
        return "allowed_token_ids"
    return "bad_words" if params.grammar is None and params.bad_words else _grammar_field(sequence)
