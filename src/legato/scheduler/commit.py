"""Take a step's result into the sequences, and say what is new."""

from array import array
from dataclasses import replace

from legato.core.types import FinishReason, StepResult, TokenEvent
from legato.scheduler.ledger import Ledger
from legato.scheduler.plan import Entry
from legato.scheduler.state import Event, Sequence, State

__all__ = ["commit_result", "commit_tokens", "end_without_token"]

FAULT = "the computation gave NaN or infinite values"
NO_TOKEN = "no token could be sampled"
NO_TOKEN_FITS = "no token could be sampled: the grammar allows none of those that the request's other fields leave"


def commit_result(ledger: Ledger, entries: list[Entry], result: StepResult) -> list[TokenEvent]:
    """Append the sampled tokens, end what has reached an end, one event per sequence with news.

    Results for sequences that have ended or were preempted since the step was planned are dropped: they are neither
    shown nor billed, and a resumed sequence samples the same token again. Blocks that are full now are kept for others,
    but not those of a step in which a row of the sequence was faulty.
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
            events.append(replace(failed, error_param=_grammar_field(sequence)))
        else:
            ledger.keep_prefix(sequence, start, start + num_rows)
            _note_scores(sequence, result, scored)
            if output >= 0:
                events.append(_commit_token(ledger, sequence, result, output))
    return events


def end_without_token(ledger: Ledger, sequence: Sequence, event: Event, error: str | None = None) -> TokenEvent:
    """End a sequence for a reason that is not a token of its own."""
    ledger.end(sequence, event)
    return TokenEvent(sequence.request.request_id, sequence.choice, (), finish=sequence.finish_reason, error=error)


def _note_scores(sequence: Sequence, result: StepResult, scored: range) -> None:
    if sequence.scores is None:
        return
    for output in scored:
        sequence.scores.append(result.logprobs[output], result.top_logprobs[output] if result.top_logprobs else ())


def commit_tokens(ledger: Ledger, sequence: Sequence, tokens: "array[int]") -> FinishReason | None:
    """Append new tokens, of which only the last can end the sequence. Its reason if it did."""
    sequence.tokens.extend(tokens)
    sequence.num_tokens += len(tokens)
    ledger.policy.sampled(sequence, len(tokens))
    end = _end_after(sequence, tokens[-1])
    if end is not None:
        ledger.end(sequence, end)
    return sequence.finish_reason


def _end_after(sequence: Sequence, token: int) -> Event | None:
    """How the sequence ends with its new token; None: it goes on. Its matcher sees all tokens but an end token."""
    if token in sequence.end_ids and sequence.num_tokens > sequence.min_end_position:
        return Event.STOP
    if sequence.matcher is not None:
        sequence.matcher.accept(token)
        if sequence.matcher.failure is not None:
            return Event.ERROR
    if _is_complete(sequence):
        return Event.STOP
    return Event.LENGTH if sequence.num_tokens == sequence.max_tokens else None


def _is_complete(sequence: Sequence) -> bool:
    """Whether nothing can follow by the grammar: the end without an end token."""
    return sequence.matcher is not None and sequence.matcher.complete


def _commit_token(ledger: Ledger, sequence: Sequence, result: StepResult, output: int) -> TokenEvent:
    scores, sequence.scores = sequence.scores, None
    if sequence.request.params.max_tokens == 0:  # the prompt was to be scored, and no more
        return replace(end_without_token(ledger, sequence, Event.LENGTH), prompt_logprobs=scores)
    token = result.tokens[output]
    position = sequence.num_tokens
    finish = commit_tokens(ledger, sequence, result.tokens[output : output + 1])
    wants_logprobs = sequence.request.params.logprobs is not None
    return TokenEvent(
        request_id=sequence.request.request_id,
        choice=sequence.choice,
        tokens=(token,),
        logprobs=(result.logprobs[output],) if wants_logprobs else (),
        top_logprobs=(result.top_logprobs[output],) if wants_logprobs and result.top_logprobs else (),
        finish=finish,
        stop_token=token if finish is FinishReason.STOP and not _is_complete(sequence) else None,
        error=None if sequence.matcher is None else sequence.matcher.failure,
        error_param=_grammar_field(sequence) if finish is FinishReason.ERROR else None,
        num_cached=sequence.num_cached if position == sequence.num_prompt else 0,
        prompt_logprobs=scores,
        num_restored=min(sequence.num_restored, sequence.num_cached) if position == sequence.num_prompt else 0,
        num_pinned=sequence.num_pinned if position == sequence.num_prompt else 0,
    )


def _grammar_field(sequence: Sequence) -> str | None:
    grammar = sequence.request.params.grammar
    return None if grammar is None else grammar.param
