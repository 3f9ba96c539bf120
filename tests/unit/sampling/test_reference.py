import math
from dataclasses import replace

import numpy as np
import pytest

from legato.sampling.reference import choose, penalize, sample_row, top_logprobs
from legato.sampling.uniform import uniform
from support.resets import PLAIN

GREEDY = replace(PLAIN, temperature=0.0)


def row(*values):
    return np.array(values, np.float32)


def reachable(logits, params):
    """The ids that come out over a fine grid of uniforms."""
    return {choose(logits, params, i / 2048) for i in range(2048)}


def test_greedy_takes_the_lowest_id_on_a_tie():
    assert sample_row(row(1, 3, 3, 2), GREEDY, [], 0).token == 1


def test_d09_repetition_penalty_sees_prompt_and_output():
    params = replace(PLAIN, repetition_penalty=2.0, prompt=(0,))
    np.testing.assert_array_equal(penalize(row(4, -4, 4, -4), params, [1]), row(2, -8, 4, -4))


def test_d09_presence_and_frequency_see_the_output_only():
    presence = replace(PLAIN, presence_penalty=0.5, prompt=(0,))
    np.testing.assert_array_equal(penalize(row(1, 1, 1), presence, [1, 1]), row(1, 0.5, 1))
    frequency = replace(PLAIN, frequency_penalty=0.5, prompt=(0,))
    np.testing.assert_array_equal(penalize(row(1, 1, 1), frequency, [1, 1, 2]), row(1, 0, 0.5))


def test_penalties_leave_the_given_logits_alone():
    logits = row(4, 4)
    penalize(logits, replace(PLAIN, presence_penalty=1.0), [0])
    np.testing.assert_array_equal(logits, row(4, 4))


def test_end_ids_are_banned_below_min_position():
    params = replace(GREEDY, min_position=5, end_token_ids=(2,))
    assert sample_row(row(0, 1, 2), params, [], 3).token == 1
    assert sample_row(row(0, 1, 2), params, [], 4).token == 2


def test_d14_padding_behind_the_vocabulary_is_not_there():
    params = replace(GREEDY, vocab_size=2, num_logprobs=2)
    sampled = sample_row(row(0, 1, 99), params, [], 0)
    assert (sampled.token, [token for token, _ in sampled.top_logprobs]) == (1, [1, 0])
    assert math.isclose(sampled.logprob, -math.log(1 + math.exp(-1)), rel_tol=1e-6)


def test_bad_words_are_cut_off_before_their_last_token():
    params = replace(GREEDY, bad_words=((2,), (0, 1), (1, 0, 3)))
    assert sample_row(row(0, 1, 9, 8), params, [], 0).token == 3
    assert sample_row(row(0, 1, 9, 8), params, [1, 0], 0).token == 0


def test_mask_allows_by_bit():
    assert sample_row(row(0, 1, 2), GREEDY, [], 0, mask=bytes([0b001])).token == 0
    assert sample_row(row(*range(10)), GREEDY, [], 0, mask=bytes([0xFF, 0b01])).token == 8
    assert sample_row(row(0, 1, 2), GREEDY, [], 0, mask=bytes([0])).token == -1


def test_biases_come_after_penalties():
    params = replace(GREEDY, repetition_penalty=2.0, prompt=(0,), bias_token_ids=(0, 1), bias_values=(1.5, -100.0))
    assert sample_row(row(4, 9, 3), params, [], 0).token == 0  # 4 / 2 + 1.5 beats 3; before the penalty it would not
    assert sample_row(row(4, 9, 3.75), params, [], 0).token == 2
    assert sample_row(row(-np.inf, 9, 3), params, [], 0).token == 2


def test_only_allowed_ids_are_chosen():
    params = replace(GREEDY, allowed_token_ids=(0, 2), bias_token_ids=(1,), bias_values=(100.0,))
    assert sample_row(row(1, 9, 2), params, [], 0).token == 2
    assert sample_row(row(1, 9, 2), params, [], 0, mask=bytes([0b011])).token == 0
    assert sample_row(row(1, 9, 2), params, [], 0, mask=bytes([0b010])).token == -1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_faulty_rows_give_no_token(bad):
    assert sample_row(row(0, bad), GREEDY, [], 0).token == -1


def test_top_k_keeps_exactly_k_and_the_lower_id_on_ties():
    assert reachable(row(1, 2, 2, 2), replace(PLAIN, top_k=2)) == {1, 2}


def test_top_p_keeps_the_smallest_prefix_that_reaches_it():
    logits = np.log(row(0.1, 0.5, 0.25, 0.15))
    assert reachable(logits, replace(PLAIN, top_p=0.45)) == {1}
    assert reachable(logits, replace(PLAIN, top_p=0.7)) == {1, 2}
    assert reachable(logits, replace(PLAIN, top_p=0.85)) == {1, 2, 3}


def test_top_p_applies_to_what_top_k_left():
    logits = np.log(row(0.4, 0.3, 0.2, 0.1))
    assert reachable(logits, replace(PLAIN, top_k=2, top_p=0.55)) == {0}


def test_min_p_is_relative_to_the_largest():
    logits = np.log(row(0.5, 0.3, 0.15, 0.05))
    assert reachable(logits, replace(PLAIN, min_p=0.25)) == {0, 1, 2}


def test_inverse_cdf_runs_in_ascending_id_order():
    logits = np.log(row(0.25, 0.5, 0.25))
    assert [choose(logits, PLAIN, u) for u in (0.0, 0.2, 0.3, 0.7, 0.8, 0.999)] == [0, 0, 1, 1, 2, 2]


def test_draws_follow_the_distribution():
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    logits = np.log(probabilities).astype(np.float32)
    draws = [sample_row(logits, PLAIN, [], position).token for position in range(5000)]
    counts = np.bincount(draws, minlength=4)
    chi_square = ((counts - 5000 * probabilities) ** 2 / (5000 * probabilities)).sum()
    assert chi_square < 16.3  # 0.999 quantile of chi-square with 3 degrees of freedom


def test_c03_a_token_drawn_again_with_a_mask_where_it_refuses_is_as_likely_as_with_the_mask_alone():
    """C03. Not so with the number of the first draw: it tells which of the tokens were refused."""
    logits = row(1, 0.5, 2, 0, 1.5, -1, 0.2)
    mask = bytes([0b1011010])
    allowed = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), count=7, bitorder="little"))
    params = replace(PLAIN, temperature=0.8)
    weights = np.exp(logits[allowed].astype(np.float64) / params.temperature)
    expected = 4000 * weights / weights.sum()
    masked = np.full(7, -np.inf, np.float32)
    masked[allowed] = logits[allowed]

    def chi_square(again):
        counts = np.zeros(7)
        for seed in range(4000):
            seeded = replace(params, seed=seed)
            token = sample_row(logits, seeded, [], 8).token
            counts[token if token in allowed else again(seeded)] += 1
        return ((counts[allowed] - expected) ** 2 / expected).sum()

    least = 16.3  # 0.999 quantile of chi-square with 3 degrees of freedom
    assert chi_square(lambda seeded: sample_row(logits, seeded, [], 8, mask).token) < least
    assert chi_square(lambda seeded: choose(masked, seeded, uniform(seeded.seed, 0, 9))) > least


def test_the_uniform_belongs_to_the_sampled_position():
    logits = np.zeros(1000, np.float32)
    assert sample_row(logits, PLAIN, [], 41).token == int(uniform(11, 0, 42) * 1000)
    assert sample_row(logits, replace(PLAIN, choice=1), [], 41).token == int(uniform(11, 1, 42) * 1000)


def test_logprobs_come_from_the_raw_logits():
    logits = row(1, 3, 2, 3)
    params = replace(GREEDY, num_logprobs=2, presence_penalty=2.0)
    sampled = sample_row(logits, params, [1], 0)
    exact = logits.astype(np.float64) - math.log(np.exp(logits.astype(np.float64)).sum())
    assert sampled.token == 3
    assert sampled.logprob == pytest.approx(exact[3])
    assert [token for token, _ in sampled.top_logprobs] == [1, 3]
    assert top_logprobs(logits, 0, 0) == (pytest.approx(exact[0]), ())
    assert math.isnan(sample_row(logits, GREEDY, [], 0).logprob)
