"""Beam search over one prompt: which sequences to look at next, and which ones won. Knows no engine.

The algorithm is that of transformers: all continuations of the live beams are ranked by the sum of their log
probabilities; those that end go to the finished ones, ranked by sum / length ** length_penalty, and the best others
live on. A repetition penalty multiplies the log probabilities of tokens that prompt or output hold already.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from legato.core.types import BeamOptions

__all__ = ["Beam", "BeamSearch", "Finished"]

Top = tuple[tuple[int, float], ...]  # token ids and log probabilities, best first


@dataclass(frozen=True, slots=True)
class Beam:
    """The output so far. `tops`: what each token was chosen from. `total`: the sum of `logprobs`, with the penalty."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    tops: tuple[Top, ...] = ()
    total: float = 0.0

    def then(self, token: int, logprob: float, top: Top, total: float) -> "Beam":
        return Beam((*self.tokens, token), (*self.logprobs, logprob), (*self.tops, top), total)


@dataclass(frozen=True, slots=True)
class Finished:
    """A beam that has ended, with an end token or for its length."""

    beam: Beam
    score: float
    ended: bool


class BeamSearch:
    """`live` beams want their next tokens; give them to `advance` until `done`, then read `best`.

    prompt: what a repetition penalty looks at beside the output. num_told: how many of each token's `tops` to keep.
    """

    def __init__(
        self,
        options: BeamOptions,
        end_ids: frozenset[int],
        *,
        max_tokens: int,
        min_tokens: int = 0,
        repetition_penalty: float = 1.0,
        prompt: Iterable[int] = (),
        num_told: int = 0,
    ) -> None:
        self._options = options
        self._penalty = repetition_penalty
        self._prompt = frozenset(prompt) if repetition_penalty != 1.0 else frozenset[int]()
        self._num_told = num_told
        self._end_ids = end_ids
        self._max_tokens = max_tokens
        self._min_tokens = min_tokens
        self._finished: list[Finished] = []  # best first, at most `width`
        self.live = [Beam()]
        self.done = False

    @property
    def num_candidates(self) -> int:
        """How many continuations are ranked of each beam: enough where all end tokens are among them."""
        return self._options.width * max(2, 1 + len(self._end_ids))

    def wanted(self, beam: Beam) -> tuple[int, tuple[int, ...]]:
        """What `advance` needs of a beam's next token: so many of the best ones, and these ids whatever their rank."""
        if self._penalty == 1.0:
            return self.num_candidates, ()
        seen = self._prompt.union(beam.tokens)  # any of them may fall behind, or with a penalty below 1 come forward
        return self.num_candidates + len(seen), tuple(sorted(seen)) if self._penalty < 1.0 else ()

    def advance(self, tops: Sequence[Top]) -> None:
        """Take the next tokens of each live beam: what `wanted` says of it, or the whole vocabulary."""
        width = self._options.width
        ranked = [
            (beam.total + weight, beam, token, logprob, top[: self._num_told])
            for beam, top in zip(self.live, tops, strict=True)
            for weight, token, logprob in self._weighed(beam, top)
        ]
        ranked.sort(key=lambda candidate: -candidate[0])  # stable: on a tie the better beam, then the better token
        live: list[Beam] = []
        for rank, (total, beam, token, logprob, top) in enumerate(ranked[: self.num_candidates]):
            if token not in self._end_ids:
                live.append(beam.then(token, logprob, top, total))
                if len(live) == width:
                    break
            elif rank < width and len(beam.tokens) >= self._min_tokens:
                self._finish(beam.then(token, logprob, top, total), ended=True)
        self.live = live
        if not live or len(live[0].tokens) == self._max_tokens:
            for beam in live:
                self._finish(beam, ended=False)
            self.live = []
        self.done = not self.live or self._decided()

    def best(self) -> list[Finished]:
        """The finished beams, best first."""
        return self._finished

    def _weighed(self, beam: Beam, top: Top) -> list[tuple[float, int, float]]:
        """The best continuations of a beam: what each adds to its total, the token and its log probability."""
        if self._penalty == 1.0:
            return [(logprob, token, logprob) for token, logprob in top[: self.num_candidates]]
        seen = self._prompt.union(beam.tokens)
        weighed = [(x * self._penalty if token in seen else x, token, x) for token, x in dict(top).items()]
        weighed.sort(key=lambda each: -each[0])
        return weighed[: self.num_candidates]

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
