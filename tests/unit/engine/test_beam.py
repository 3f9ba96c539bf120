"""Beam search against a plain one that ranks the whole vocabulary, on random Markov chains."""

import random
from collections.abc import Callable, Sequence
from math import log

from hypothesis import given
from hypothesis import strategies as st

from legato.core.types import BeamOptions
from legato.engine.beam import BeamSearch
from support.plain_beam import plain_beam_search

VOCAB = 12


def chain(seed: int) -> Callable[[Sequence[int]], list[float]]:
    """Log probabilities of the next token, given the last two."""

    def logprobs(tokens: Sequence[int]) -> list[float]:
        rng = random.Random(f"{seed} {list(tokens[-2:])}")
        weights = [rng.random() ** 3 + 1e-3 for _ in range(VOCAB)]
        total = sum(weights)
        return [log(weight / total) for weight in weights]

    return logprobs


@given(
    seed=st.integers(0, 10**6),
    width=st.integers(1, 5),
    ends=st.frozensets(st.integers(0, VOCAB - 1), max_size=3),
    max_tokens=st.integers(1, 9),
    min_tokens=st.integers(0, 3),
    length_penalty=st.sampled_from([1.0, 0.0, -1.0, 2.0, 0.6]),
    early_stopping=st.sampled_from([True, False, "never"]),
)
def test_beams_are_those_of_a_plain_search(
    seed: int,
    width: int,
    ends: frozenset[int],
    max_tokens: int,
    min_tokens: int,
    length_penalty: float,
    early_stopping: bool | str,
) -> None:
    options = BeamOptions(width, length_penalty, early_stopping)  # type: ignore[arg-type]
    search = BeamSearch(options, ends, max_tokens=max_tokens, min_tokens=min(min_tokens, max_tokens))
    next_logprobs = chain(seed)
    while not search.done:
        tops = []
        for beam in search.live:
            best = sorted(enumerate(next_logprobs(beam.tokens)), key=lambda pair: -pair[1])
            tops.append(best[: search.num_candidates])
        search.advance(tops)
    expected = plain_beam_search(
        next_logprobs,
        width,
        ends,
        max_tokens=max_tokens,
        min_tokens=min(min_tokens, max_tokens),
        length_penalty=length_penalty,
        early_stopping=early_stopping,
    )
    assert [(f.beam.tokens, f.ended) for f in search.best()] == [(tokens, ended) for tokens, _, ended in expected]
    for found, (_, score, _) in zip(search.best(), expected, strict=True):
        assert abs(found.score - score) < 1e-9
        assert abs(found.beam.total - sum(found.beam.logprobs)) < 1e-9


def test_length_penalty_decides_between_short_and_long() -> None:
    """Token 0 ends. Two steps: end at once with 0.5, or go on with 0.5 and end with 0.9."""

    def answer(length_penalty: float) -> tuple[int, ...]:
        search = BeamSearch(BeamOptions(1, length_penalty, "never"), frozenset({0}), max_tokens=3)
        search.advance([[(0, -0.69), (1, -0.70)]])
        while not search.done:
            search.advance([[(0, -0.1), (1, -2.4)]])
        return search.best()[0].beam.tokens

    assert answer(0.0) == (0,)
    assert answer(2.0) == (1, 0)
