import math
from dataclasses import replace

import numpy as np
import pytest
from levels import LEVELS

from legato import _native
from legato.sampling import reference
from support.resets import PLAIN

ops = _native.ops
every_level = pytest.mark.parametrize("isa", LEVELS)

PARAMS = replace(PLAIN, seed=0)


def row(vocab, seed=0, spread=3.0):
    return (np.random.default_rng(seed).standard_normal(vocab) * spread).astype(np.float32)


def uniforms(n, seed=1):
    return np.random.default_rng(seed).random(n, dtype=np.float32)


def sample(isa, logits, u, **options):
    return ops.sample(isa, logits, np.atleast_1d(np.asarray(u, np.float32)), **options)


def best(isa, logits, **options):
    return sample(isa, logits, 0.5, temperature=0.0, **options)[0]


def check_against_reference(isa, logits, mask=None, **options):
    """Equal to the reference sampler, or (single precision) to its answer at a uniform 1e-5 away."""
    params = replace(PARAMS, **options)
    allowed = logits.copy()
    if mask is not None:
        allowed[np.unpackbits(mask, count=len(logits), bitorder="little") == 0] = -np.inf
    us = np.r_[uniforms(20), 0.0, np.nextafter(np.float32(1), np.float32(0))]
    for u, token in zip(us, sample(isa, logits, us, mask=mask, **options), strict=True):
        if token != reference.choose(allowed, params, float(u)):
            near = [reference.choose(allowed, params, min(max(u + d, 0.0), 1 - 1e-9)) for d in (-1e-5, 1e-5)]
            assert token in near, (u, token, near)


@every_level
@pytest.mark.parametrize("vocab", [1, 2, 15, 17, 64, 65, 1000, 5003])
def test_greedy_is_the_largest(isa, vocab):
    for seed in range(5):
        logits = row(vocab, seed)
        assert best(isa, logits) == int(np.argmax(logits))


@every_level
def test_greedy_takes_the_lowest_id_of_a_tie(isa):
    for tied in [(0, 999), (3, 5), (63, 64), (640, 641, 700), (15, 16)]:
        logits = row(1000)
        logits[list(tied)] = 50.0
        assert best(isa, logits) == tied[0]
        assert best(isa, np.where(logits == 50.0, 0.0, -np.inf).astype(np.float32)) == tied[0]
    assert best(isa, np.array([-0.0, 0.0], np.float32)) == 0
    assert best(isa, np.array([-np.inf, -np.inf, -1e30], np.float32)) == 2


@every_level
@pytest.mark.parametrize("vocab", [7, 33, 1000])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("top_k", [0, 3, 900])
def test_a_faulty_row_gives_no_token(isa, vocab, temperature, top_k):
    options = {"temperature": temperature, "top_k": top_k}
    for at in (0, vocab // 2, vocab - 1):
        for value in (np.nan, np.inf):
            logits = row(vocab)
            logits[at] = value
            assert sample(isa, logits, 0.5, **options) == [-1]
            mask = np.packbits(np.arange(vocab) != at, bitorder="little")
            assert sample(isa, logits, 0.5, mask=mask, **options) == [-1]
    assert sample(isa, np.full(vocab, -np.inf, np.float32), 0.5, **options) == [-1]
    assert sample(isa, row(vocab), 0.5, mask=np.zeros(-(-vocab // 8), np.uint8), **options) == [-1]


@every_level
@pytest.mark.parametrize("vocab", [3, 8, 9, 100, 1001, 4999])
@pytest.mark.parametrize("kept", [1, 2, 50])
def test_only_allowed_tokens_come(isa, vocab, kept):
    rng = np.random.default_rng(vocab)
    allowed = np.sort(rng.permutation(vocab)[:kept])
    mask = np.packbits(np.isin(np.arange(vocab), allowed), bitorder="little")
    logits = row(vocab)
    assert best(isa, logits, mask=mask) == allowed[np.argmax(logits[allowed])]
    for options in ({}, {"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.01}, {"temperature": 5.0}):
        check_against_reference(isa, logits, mask=mask, **options)


@every_level
@pytest.mark.parametrize("vocab", [2, 40, 1000, 9001])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.3},
        {"temperature": 2.0},
        {"top_k": 1},
        {"top_k": 50},
        {"top_k": 50, "temperature": 1.7},
        {"top_k": 700},
        {"top_k": 10**6},
        {"min_p": 0.1},
        {"min_p": 1.0},
        {"top_k": 20, "min_p": 0.02},
    ],
)
def test_equals_the_reference(isa, vocab, options):
    check_against_reference(isa, row(vocab), **options)


@every_level
@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 8.0])
@pytest.mark.parametrize("others", [{}, {"top_k": 40}, {"top_k": 2500}, {"min_p": 0.05}, {"temperature": 1.6}])
def test_top_p_keeps_the_shortest_prefix(isa, spread, others):
    """top_p halfway between two sums of the reference, so that rounding cannot move the border."""
    logits = row(3000, spread=spread)
    scaled = np.sort(logits.astype(np.float64))[::-1] / others.get("temperature", 1.0)
    weights = np.exp(scaled - scaled[0])
    weights = weights[weights >= others.get("min_p", 0.0)][: others.get("top_k", 3000)]
    sums = np.cumsum(weights) / weights.sum()
    for size in {1, 2, 3, 10, len(sums) // 2, len(sums) - 1}:
        if 0 < size < len(sums) and sums[size] - sums[size - 1] > 1e-6:
            check_against_reference(isa, logits, top_p=float(sums[size - 1] + sums[size]) / 2, **others)


@every_level
@pytest.mark.parametrize("vocab", [100, 10000])
def test_ties_at_the_border_go_to_lower_ids(isa, vocab):
    logits = np.zeros(vocab, np.float32)
    logits[vocab // 2] = 1.0
    for top_k in (1, 2, 5, vocab // 2, vocab - 1):
        kept = {vocab // 2, *list(range(vocab))[: top_k - 1]} if top_k <= vocab // 2 else None
        tokens = set(sample(isa, logits, uniforms(200), top_k=top_k))
        assert kept is None or tokens <= kept
        check_against_reference(isa, logits, top_k=top_k)
    signed = np.where(np.arange(vocab) % 2 == 0, 0.0, -0.0).astype(np.float32)
    assert set(sample(isa, signed, uniforms(200), top_k=3)) == {0, 1, 2}


@every_level
def test_tiny_top_p_and_temperature_keep_the_best(isa):
    logits = row(1000)
    for options in ({"top_p": 1e-30}, {"temperature": 1e-30}, {"temperature": 1e-42}, {"temperature": 1e-6}):
        assert set(sample(isa, logits, uniforms(20), **options)) == {int(np.argmax(logits))}


@every_level
@pytest.mark.parametrize("options", [{}, {"top_k": 6}, {"top_p": 0.95}, {"temperature": 1.5}])
def test_distribution(isa, options):
    """Chi-square against the exact probabilities, 20 000 draws, a fixed seed: far below the 1e-6 quantile."""
    logits = np.array([2.0, 1.0, 0.5, 0.0, -0.5, 1.5, -1.0, 0.2, -3.0, 0.7], np.float32)
    order = np.argsort(-logits)
    weights = np.exp(logits.astype(np.float64) / options.get("temperature", 1.0))
    kept = order[: options.get("top_k", 10)]
    if "top_p" in options:
        sums = np.cumsum(weights[kept])
        kept = kept[: int(np.searchsorted(sums, options["top_p"] * sums[-1])) + 1]
    expected = np.zeros(10)
    expected[kept] = weights[kept] / weights[kept].sum() * 20000
    counts = np.bincount(sample(isa, logits, uniforms(20000), **options), minlength=10)
    assert not counts[expected == 0].any()
    chi_square = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    degrees = len(kept) - 1
    assert chi_square < degrees + 5 * math.sqrt(2 * degrees) + 12


@every_level
@pytest.mark.parametrize("vocab", [1, 9, 100, 4999, 50000])
@pytest.mark.parametrize("spread", [0.0, 3.0, 40.0])
def test_logprobs(isa, vocab, spread):
    logits = row(vocab, spread=spread)
    logits[vocab // 3] = logits[0]  # a tie
    for count in {0, 1, min(5, vocab), min(20, vocab)}:
        token = vocab // 2
        want, want_top = reference.top_logprobs(logits, token, count)
        got, ids, values = ops.logprobs(isa, logits, token, count)
        assert got == pytest.approx(want, rel=1e-6, abs=5e-6)
        assert ids == [i for i, _ in want_top]
        assert values == pytest.approx([v for _, v in want_top], rel=1e-6, abs=5e-6)


@every_level
def test_logprobs_of_banned_tokens_and_of_none(isa):
    logits = np.array([0.0, -np.inf, 1.0, -np.inf], np.float32)
    value, ids, values = ops.logprobs(isa, logits, 1, 4)
    assert value == -np.inf
    assert ids == [2, 0, 1, 3]
    assert values[2:] == [-np.inf, -np.inf]
    assert math.isnan(ops.logprobs(isa, logits, -1, 0)[0])
