"""Beam search on the engine: each round asks the scheduler for one token of every live beam.

The beams of a round are requests of one token, which share what they begin with through the prefix cache. To everybody
else a search is one request: it is added, aborted, measured and answered as such, with all of each choice in one event,
since nothing of it is certain earlier.
"""

import secrets
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace

from legato.core.errors import RequestError
from legato.core.types import FinishReason, Request, SamplingParams, TokenEvent
from legato.engine.beam import Beam, BeamSearch
from legato.scheduler.scheduler import Scheduler
from legato.scheduler.stats import Move

__all__ = ["Searches"]


class _Search:
    """A request, its beams, and the round under way."""

    def __init__(self, request: Request) -> None:
        params, ends = request.params, request.end_token_ids.union(request.params.stop_token_ids)
        assert request.beam is not None
        assert params.max_tokens is not None
        self.request = request
        self.beams = BeamSearch(
            request.beam,
            ends,
            max_tokens=params.max_tokens,
            min_tokens=params.min_tokens,
            repetition_penalty=params.repetition_penalty,
            prompt=request.prompt,
            num_told=params.logprobs or 0,
        )
        self.round: dict[str, int] = {}  # the number of the beam that each request of the round continues
        self.found: dict[str, TokenEvent] = {}
        self.first: TokenEvent | None = None  # of the first round: knows what was cached of the prompt
        self.aborted = False
        self.ended = False


class Searches:
    """The searches that run. Used by the engine thread only.

    vocab_size: of the model, for requests that do not say how much of it is theirs.
    """

    def __init__(self, scheduler: Scheduler, vocab_size: int) -> None:
        self._scheduler = scheduler
        self._vocab_size = vocab_size
        self._searches: dict[str, _Search] = {}  # by the id of the request
        self._beams: dict[str, _Search] = {}  # by the id of a request of a round that has not ended

    def add(self, request: Request) -> None:
        """Begin the search of a request that has `beam` set. Raises as `Scheduler.add` does."""
        search = _Search(request)
        assert request.beam is not None
        ends = request.end_token_ids.union(request.params.stop_token_ids)
        if self._size(request) - len(ends) < request.beam.width:
            raise RequestError("more beams than tokens that do not end an answer", param="n")
        self._ask(search, limited=True)
        self._searches[request.request_id] = search

    def abort(self, request_id: str) -> bool:
        """End a search; False where the id is none of a search. Its last events come with those of its round."""
        search = self._searches.get(request_id)
        if search is None:
            return False
        search.aborted = True
        for beam_id in search.round:
            self._scheduler.abort(beam_id)
        return True

    def through(self, events: Iterable[TokenEvent]) -> list[TokenEvent]:
        """The events with those of searches in the place of those of their rounds. Begins the rounds that follow."""
        told: list[TokenEvent] = []
        for event in events:
            search = self._beams.get(event.request_id)
            if search is None:
                told.append(event)
            elif event.finish is not None:
                del self._beams[event.request_id]
                if not search.ended:
                    told += self._took(search, event)
        return told

    def moves(self, moves: Iterable[Move]) -> Iterator[Move]:
        """The moves, with those of a search in the place of those of its rounds: all choices enter with the first."""
        for move in moves:
            search = self._beams.get(move.request_id)
            if search is None:
                yield move
                continue
            whose = range(search.request.params.n) if move.entered else (search.round[move.request_id],)
            for choice in whose:
                yield move._replace(request_id=search.request.request_id, choice=choice)

    def _size(self, request: Request) -> int:
        return request.vocab_size or self._vocab_size

    def _ask(self, search: _Search, *, limited: bool) -> None:
        """Begin a round. limited: the scheduler may refuse it, as nothing of the request runs yet."""
        search.round.clear()
        search.found.clear()
        for number, beam in enumerate(search.beams.live):
            request = self._continued(search, beam)
            self._scheduler.add(request, limited=limited)
            search.round[request.request_id] = number
            self._beams[request.request_id] = search

    def _continued(self, search: _Search, beam: Beam) -> Request:
        """A request for the token that follows, and for the best ones in its place."""
        request = search.request
        count, ids = search.beams.wanted(beam)
        prompt = array("i", request.prompt)  # copied as a whole where it is an array, however long
        prompt.extend(beam.tokens)
        return replace(
            request,
            request_id=secrets.token_hex(12),
            prompt=prompt,
            params=SamplingParams(
                temperature=0.0,
                max_tokens=1,
                seed=0,
                logprobs=min(count, self._size(request)),
                logprob_token_ids=ids,
            ),
            end_token_ids=frozenset(),
            beam=None,
        )

    def _took(self, search: _Search, event: TokenEvent) -> list[TokenEvent]:
        """The events of a search whose beam has its next token, or has failed."""
        if event.finish in (FinishReason.ERROR, FinishReason.ABORT):
            return self._end(search, event)
        search.found[event.request_id] = event
        if len(search.found) < len(search.round):
            return []
        if search.aborted:  # when all of the round had ended already
            return self._end(search, TokenEvent(event.request_id, 0, (), finish=FinishReason.ABORT))
        rounds = [search.found[beam_id] for beam_id in search.round]
        search.first = search.first or rounds[0]
        search.beams.advance([each.top_logprobs[0] for each in rounds])
        if not search.beams.done:
            self._ask(search, limited=False)
            return []
        del self._searches[search.request.request_id]
        return list(_choices(search))

    def _end(self, search: _Search, event: TokenEvent) -> list[TokenEvent]:
        """End every choice as a beam has ended, and its whole round."""
        search.ended = True
        del self._searches[search.request.request_id]
        for beam_id in search.round:
            self._scheduler.abort(beam_id)
        request_id = search.request.request_id
        return [event._replace(request_id=request_id, choice=i, tokens=()) for i in range(search.request.params.n)]


def _choices(search: _Search) -> Iterator[TokenEvent]:
    """The best beams, each as one event."""
    request, first = search.request, search.first
    assert first is not None
    scored = request.params.logprobs is not None
    for choice, finished in enumerate(search.beams.best()):
        beam = finished.beam
        yield first._replace(
            request_id=request.request_id,
            choice=choice,
            tokens=beam.tokens,
            logprobs=beam.logprobs if scored else (),
            top_logprobs=beam.tops if scored else (),
            finish=FinishReason.STOP if finished.ended else FinishReason.LENGTH,
            stop_token=beam.tokens[-1] if finished.ended else None,
        )
