from dataclasses import replace

import pytest

from legato.core.errors import RequestError
from legato.core.types import Request, SamplingParams
from legato.sampling.params import slot_reset, validate

NAN = float("nan")
INF = float("inf")


def check(**fields):
    validate(SamplingParams(**fields), vocab_size=100, max_position=64)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("n", [0, -1, 1.5, 129, True, "2", None]),
        ("temperature", [-1, -0.001, 2.001, 5, NAN, INF, "1", True, None]),
        ("top_p", [0, 0.0, -0.1, 1.1, NAN, None]),
        ("top_k", [-2, 1.5, True, None]),
        ("min_p", [-0.1, 1.1, 2, NAN]),
        ("presence_penalty", [-2.1, 2.1, 100, -100, NAN]),
        ("frequency_penalty", [-2.1, 2.1, 100, -100, NAN]),
        ("repetition_penalty", [0, -1, NAN, INF, 1e-46, 1e40]),
        ("seed", [2**63, 2**64, -(2**63) - 1, 1.0, True]),
        ("stop", [("",), ("a", "b", "c", "d", "e"), (3,)]),
        ("stop_token_ids", [(100,), (-1,), (1.5,), (True,), (5279552648203111001,)]),
        ("max_tokens", [0, -1, 65, 1.5, True]),
        ("min_tokens", [-1, 17, 1.5, None]),
        ("logprobs", [-1, 21, 1.5, True]),
        ("logit_bias", [{100: 1}, {-1: 1}, {"5": 1}, {True: 1}, {5: NAN}, {5: INF}, {5: "1"}, {5: True}]),
        ("logit_bias", [dict.fromkeys(range(1025), 1.0)]),
        ("allowed_token_ids", [(), (100,), (-1,), (1.5,), (True,), tuple([1] * 1025)]),
        ("bad_words", [("",), (3,), tuple("x" * 129)]),
        ("prompt_logprobs", [-1, 21, 1.5, True]),
        ("logprob_token_ids", [(1,)]),  # needs logprobs
        ("ignore_eos", [1, None]),
        ("skip_special_tokens", [0]),
        ("skip_reading_prefix_cache", [1]),
        ("include_stop_str_in_output", ["yes"]),
    ],
)
def test_d16_values_out_of_range_are_refused_by_name(field, values):
    for value in values:
        with pytest.raises(RequestError) as caught:
            check(**{field: value})
        assert caught.value.param == field
        assert field in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 10**400},
        {"seed": 10**5000},
        {"n": -(10**5000)},
        {"top_p": "x" * 5000},
        {"max_tokens": "9" * 4300},
        {"stop_token_ids": (10**4299,)},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_errors_do_not_repeat_long_values(fields):
    with pytest.raises(RequestError) as caught:
        check(**fields)
    assert caught.value.param == next(iter(fields))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 128},
        {"temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.1},
        {"temperature": 2.0},
        {"top_p": 1e-9},
        {"top_k": -1},
        {"top_k": 10**12},
        {"min_p": 1},
        {"presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 1e-3},
        {"seed": 2**63 - 1},
        {"seed": -(2**63)},
        {"stop": ("a", "b", "c", "d"), "stop_token_ids": (0, 99)},
        {"max_tokens": 64, "min_tokens": 64},
        {"max_tokens": None, "min_tokens": 64},
        {"logprobs": 0},
        {"logprobs": 20},
        {"logit_bias": {}},
        {"logit_bias": {0: 1e300, 99: -7}},
        {"allowed_token_ids": (0, 99, 99)},
        {"bad_words": ("a",) * 128},
        {"prompt_logprobs": 20, "max_tokens": 0},
        {"logprobs": 0, "logprob_token_ids": tuple(range(100))},
    ],
)
def test_the_edges_of_the_ranges_are_accepted(fields):
    check(**fields)


def test_greedy_gives_one_choice():
    with pytest.raises(RequestError, match="n must be 1"):
        check(n=2, temperature=0.0)


def request_of(**fields):
    params = SamplingParams(**{"seed": 5, **fields})
    return Request("r", (1, 2, 3), params, arrival_s=0.0, end_token_ids=frozenset({9}))


def reset_of(output=(), **fields):
    return slot_reset(request_of(**fields), choice=1, slot=4, output=output)


def test_reset_names_slot_choice_and_seed():
    reset = reset_of()
    assert (reset.slot, reset.choice, reset.seed, reset.num_logprobs) == (4, 1, 5, -1)
    assert reset_of(logprobs=0).num_logprobs == 0


def test_a_request_without_a_seed_cannot_be_placed():
    with pytest.raises(ValueError, match="seed"):
        reset_of(seed=None)


@pytest.mark.parametrize(("given", "installed"), [(0, 0.0), (9e-6, 0.0), (1e-5, 0.01), (0.005, 0.01), (0.7, 0.7)])
def test_tiny_temperatures(given, installed):
    assert reset_of(temperature=given).temperature == installed


@pytest.mark.parametrize(("given", "installed"), [(-1, 0), (0, 0), (7, 7), (10**12, 2**31 - 1)])
def test_top_k_fits_32_bits(given, installed):
    assert reset_of(top_k=given).top_k == installed


def test_biases_are_cut_to_100():
    reset = reset_of(logit_bias={7: 250, 2: -1e300, 5: 0.5})
    assert (reset.bias_token_ids, reset.bias_values) == ((2, 5, 7), (-100.0, 0.5, 100.0))
    assert reset_of(logit_bias={}).bias_token_ids == reset_of().bias_values == ()
    assert (reset_of(allowed_token_ids=(3, 1)).allowed_token_ids, reset_of().allowed_token_ids) == ((3, 1), ())


def test_min_tokens_bans_all_ids_that_end():
    reset = reset_of(min_tokens=2, stop_token_ids=(4,))
    assert reset.min_position == 5
    assert reset.end_token_ids == (4, 9)
    assert reset_of(stop_token_ids=(4,)).end_token_ids == ()


def test_history_travels_only_with_the_penalties_that_need_it():
    assert (reset_of([7]).prompt, reset_of([7]).output) == ((), ())
    repetition = reset_of([7], repetition_penalty=1.1)
    assert (repetition.prompt, repetition.output) == ((1, 2, 3), (7,))
    words = replace(request_of(), bad_words=((5,), (6, 7)))
    assert slot_reset(words, 0, 0, [7]).output == (7,)
    assert slot_reset(replace(words, bad_words=((5,),)), 0, 0, [7]).output == (), "a word of one token needs none"
    for name in ("presence_penalty", "frequency_penalty"):
        reset = reset_of([7], **{name: 0.5})
        assert (reset.prompt, reset.output) == ((), (7,))
