"""Traffic that is drawn, and the prompts that stand for it."""

import itertools
import math
import statistics

import pytest

from legato.core.errors import ConfigError
from legato.simulate.traffic import Lengths, Prompts, Visit, drawn


def test_arrivals_have_the_rate_and_the_burstiness_asked_for():
    for burstiness in (0.25, 1.0, 4.0):
        times = [visit.at_s for visit in drawn(4000, 8.0, burstiness, Lengths(prompt=10, output=5), 1)]
        spans = [after - before for before, after in itertools.pairwise(times)]
        assert statistics.fmean(spans) == pytest.approx(1 / 8, rel=0.1)
        assert statistics.variance(spans) * 64 == pytest.approx(1 / burstiness, rel=0.2)
    assert {visit.at_s for visit in drawn(9, math.inf, 1.0, Lengths(prompt=10, output=5), 1)} == {0.0}
    with pytest.raises(ConfigError, match="rate and burstiness"):
        list(drawn(9, 0.0, 1.0, Lengths(prompt=10, output=5), 1))


def test_lengths_have_the_mean_asked_for():
    lengths = Lengths(prompt=400, output=200, spread=0.8, prefix=64, groups=10)
    visits = list(drawn(20_000, 1.0, 1.0, lengths, 2))
    assert visits == list(drawn(20_000, 1.0, 1.0, lengths, 2))
    assert statistics.fmean(visit.prompt_tokens for visit in visits) == pytest.approx(464, rel=0.03)
    assert statistics.fmean(visit.output_tokens for visit in visits) == pytest.approx(200, rel=0.03)
    sizes = [sum(visit.shared == (group,) for visit in visits) for group in range(10)]
    assert sizes[0] == pytest.approx(2 * sizes[1], rel=0.1)
    assert sum(sizes) == len(visits)
    fixed = Lengths(prompt=7, output=9, longest_output=8)
    assert {(visit.prompt_tokens, visit.output_tokens, visit.shared) for visit in drawn(5, 1.0, 1.0, fixed, 0)} == {
        (7, 8, ())
    }


@pytest.mark.parametrize("vocab", [4, 100, 50_000])
def test_prompts_are_equal_exactly_where_visits_say_so(vocab):
    prompts = Prompts(vocab)
    first, same, other, cut, short = (
        list(prompts.request(visit).prompt)
        for visit in (
            Visit(0.0, 200, 1, (7, 9), 64),
            Visit(0.0, 200, 1, (7, 9), 64),
            Visit(0.0, 200, 1, (7, 10), 64),
            Visit(0.0, 100, 1, (7, 9), 64),
            Visit(0.0, 3, 1),
        )
    )
    assert first[:128] == same[:128]
    assert first[128:] != same[128:]
    assert first[:64] == other[:64]
    assert first[64:128] != other[64:128]
    assert cut == first[:100]
    assert len(short) == 3
    assert all(0 <= token < vocab for token in first + other + short)
    assert len({tuple(Prompts(vocab)._marked(number, 1, 64)) for number in range(500)}) == 1 * 500


def test_too_small_a_vocabulary_is_refused():
    with pytest.raises(ConfigError, match="3 tokens"):
        Prompts(3)
