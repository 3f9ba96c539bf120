"""Bisection over what a simulation says."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.simulate.search import least_count, most_rate


@given(bound=st.integers(1, 300), most=st.integers(1, 256))
def test_the_least_count_is_found(bound, most):
    asked = []

    def does(count):
        asked.append(count)
        return count >= bound

    assert least_count(does, most) == (bound if bound <= most else None)
    assert len(asked) <= 20
    assert max(asked) <= most


@given(bound=st.floats(0.01, 1e4))
def test_the_most_rate_is_found(bound):
    assert most_rate(lambda rate: rate <= bound, 1.0) == pytest.approx(bound, rel=0.031)


def test_nothing_or_everything_does():
    assert most_rate(lambda rate: False, 1.0) == 0.0
    assert most_rate(lambda rate: True, 1.0) == math.inf
