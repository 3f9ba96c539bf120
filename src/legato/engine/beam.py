"""Beam search over one prompt: which sequences to look at next, and which ones won. Knows no engine.

The algorithm is that of transformers: all continuations of the live beams are ranked by the sum of their log
probabilities; those that end go to the finished ones, ranked by sum / length ** length_penalty, and the best others
live on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from legato.core.types import BeamOptions

__all__ = ["Beam", "BeamSearch", "Finished"]

Top = Sequence[tuple[int, float]]  # token ids and log probabilities, best first


@dataclass(frozen=True, slots=True)
class Beam:
    """The output so far. `tops`: what each token was chosen from. `total`: the sum of `logprobs`."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    tops: tuple[Top, ...] = ()
    total: float = 0.0

    def then(self, token: int, logprob: float, top: Top) -> "Beam":
        return Beam((*self.tokens, token), (*self.logprobs, logprob), (*self.tops, top), self.total + logprob)


@dataclass(frozen=True, slots=True)
class Finished:
    """A beam that has ended, with an end token or for its length."""

    beam: Beam
    score: float
    ended: bool


class BeamSearch:
    """`live` beams want their next tokens; give them to `advance` until `done`, then read `best`."""

    def __init__(self, options: BeamOptions, end_ids: frozenset[int], *, max_tokens: int, min_tokens: int = 0) -> None:
        self._options = options
        self._end_ids = end_ids
        self._max_tokens = max_tokens
        self._min_tokens = min_tokens
        self._finished: list[Finished] = []  # best first, at most `width`
        self.live = [Beam()]
        self.done = False

    @property
    def num_candidates(self) -> int:
        """How many of the best next tokens of each beam `advance` needs: enough where all end tokens are among them."""
        return self._options.width * max(2, 1 + len(self._end_ids))

    def advance(self, tops: Sequence[Top]) -> None:
        """Take the best next tokens of each live beam, `num_candidates` of them or the whole vocabulary."""
        width = self._options.width
        ranked = [
            (beam.total + logprob, beam, token, logprob, top)
            for beam, top in zip(self.live, tops, strict=True)
            for token, logprob in top[: self.num_candidates]
        ]
        ranked.sort(key=lambda candidate: -candidate[0])  # stable: on a tie the better beam, then the better token
        live: list[Beam] = []
        for rank, (_, beam, token, logprob, top) in enumerate(ranked[: self.num_candidates]):
            if token not in self._end_ids:
                live.append(beam.then(token, logprob, top))
                if len(live) == width:
                    break
            elif rank < width and len(beam.tokens) >= self._min_tokens:
                self._finish(beam.then(token, logprob, top), ended=True)
        self.live = live
        if not live or len(live[0].tokens) == self._max_tokens:
            for beam in live:
                self._finish(beam, ended=False)
            self.live = []
        self.done = not self.live or self._decided()

    def best(self) -> list[Finished]:
        """The finished beams, best first."""
        return self._finished

    def _finish(self, beam: Beam, *, ended: bool) -> None:
        self._finished.append(Finished(beam, self._score(beam.total, len(beam.tokens)), ended))
        self._finished.sort(key=lambda finished: -finished.score)
        del self._finished[self._options.width :]

    def _decided(self) -> bool:
        """Whether no live beam is to be waited for."""
        if len(self._finished) < self._options.width:
            return False
        if self._options.early_stopping is True:
            return True
        length = len(self.live[0].tokens)
        if self._options.early_stopping == "never" and self._options.length_penalty > 0:
            length = self._max_tokens
        attainable = self._score(max(beam.total for beam in self.live), length)
        return self._finished[-1].score >= attainable

    def _score(self, total: float, length: int) -> float:
        return float(total / length**self._options.length_penalty)
