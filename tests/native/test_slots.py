"""The plan runner's sequence slots: tokens, log probabilities and prompt scores are those of the reference sampler."""

from array import array
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from legato.core.types import OutputPurpose
from legato.executor.native import NativeExecutor
from legato.sampling.reference import sample_row, top_logprobs
from support.drive import GREEDY, logits, run, step
from support.tiny_engines import open_native, tiny_engine

TOKENS = [int(t) for t in np.random.RandomState(5).randint(0, 80, 50)]


@pytest.fixture
def tiny(tmp_path: Path) -> NativeExecutor:
    return open_native(tiny_engine(tmp_path / "tiny.legato"), threads=2)


SAMPLING = [
    {},
    {"temperature": 1.3, "seed": (1 << 63) + 5, "choice": 3},
    {"temperature": 0.7, "top_k": 5, "top_p": 0.8, "min_p": 0.05, "seed": -2},
    {
        "repetition_penalty": 1.4,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "prompt": (1, 2, 3),
        "output": (4, 4),
    },
    {"temperature": 1.0, "repetition_penalty": 0.6, "num_logprobs": 4, "seed": 11},
    {"min_position": 1000, "end_token_ids": tuple(range(0, 80, 3)), "num_logprobs": 0},
    {"bias_token_ids": (1, 2, 79), "bias_values": (1.5, -100.0, 2.5), "num_logprobs": 3},
    {"temperature": 1.0, "seed": 12, "allowed_token_ids": (0, 3, 4, 41, 78, 79), "num_logprobs": 2},
    {"num_logprobs": 2, "logprob_token_ids": (79, 0, 41)},
    {
        "num_logprobs": 3,
        "vocab_size": 37,
        "temperature": 1.3,
        "seed": 3,
        "bias_token_ids": (60,),
        "bias_values": (9.0,),
    },
    {"temperature": 1.0, "seed": 15, "num_logprobs": 0, "logprob_token_ids": (3,)},
    {
        "temperature": 1.0,
        "seed": 14,
        "output": (1, 2),
        "bad_words": (
            *((i,) for i in range(0, 80, 4)),
            *((a, b) for a in range(80) for b in range(1, 80, 4)),
            (1, 2, 3),
        ),
    },
    {
        "temperature": 1.5,
        "seed": 13,
        "frequency_penalty": 0.7,
        "min_position": 12,
        "end_token_ids": (3, 8),
        "bias_token_ids": tuple(range(80)),
        "bias_values": tuple(0.05 * i for i in range(80)),
        "allowed_token_ids": tuple(range(2, 80, 3)),
        "num_logprobs": 1,
    },
]


def sampled_again_alike(changes: dict[str, Any]) -> bool:
    """Whether a slot with these parameters counts nothing of what was sampled."""
    return not any(name.endswith("penalty") or name == "bad_words" for name in changes)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("changes", SAMPLING, ids=str)
def test_tokens_are_those_of_the_reference_sampler(tiny: NativeExecutor, changes: dict[str, Any], masked: bool) -> None:
    params = replace(GREEDY, **changes)
    mask = np.packbits(np.arange(80) % 5 != 0, bitorder="little").tobytes() if masked else None
    output, token = list(params.output), 7
    for position in range(25):
        plan = step(tiny.info(), [token], position, reset=params if position == 0 else None)
        if masked:
            plan = replace(plan, out_masks=array("i", [0]), masks=(mask,))
        result = run(tiny, plan)
        expected = sample_row(tiny.logits[0], params, output, position, mask)
        token = result.tokens[0]
        assert token == expected.token
        np.testing.assert_allclose(result.logprobs[0], expected.logprob, atol=1e-5)
        assert [id for id, _ in result.top_logprobs[0]] == [id for id, _ in expected.top_logprobs]
        values = [value for _, value in expected.top_logprobs]
        np.testing.assert_allclose([value for _, value in result.top_logprobs[0]], values, atol=1e-5)
        output.append(token)


@pytest.mark.parametrize("changes", [each for each in SAMPLING if sampled_again_alike(each)], ids=str)
def test_c03_a_row_that_is_sampled_again_with_a_mask_is_the_one_sampled_with_it(
    tiny: NativeExecutor, changes: dict[str, Any]
) -> None:
    """C03: bit for bit; the other row of the step stays as it is."""
    mask = np.packbits(np.arange(80) % 5 != 0, bitorder="little").tobytes()
    plan = step(tiny.info(), TOKENS[:20], 0, outputs=[18, 19], reset=replace(GREEDY, **changes))
    with_mask = run(tiny, replace(plan, out_masks=array("i", [-1, 0]), masks=(mask,)))
    without = run(tiny, plan)
    again = tiny.sample_again(plan, without, {1: mask})
    assert (again.tokens, again.top_logprobs) == (with_mask.tokens, with_mask.top_logprobs)
    np.testing.assert_array_equal(again.logprobs, with_mask.logprobs)
    assert tiny.sample_again(plan, again, {1: bytes(10)}).tokens[1] == -1


def test_rows_that_cannot_be_sampled_again(tmp_path: Path) -> None:
    executor = open_native(tiny_engine(tmp_path / "tiny.legato"), max_seqs=3)
    forbids_all = bytes(10)
    plan = step(executor.info(), TOKENS[:8], 0, reset=GREEDY)
    result = run(executor, plan)
    again = executor.sample_again(plan, result, dict.fromkeys(range(8), forbids_all))
    assert again.tokens[:6] == result.tokens[:6], "of 3, 3 and 2 rows, only the logits of the last are there"
    assert list(again.tokens[6:]) == [-1, -1]
    with pytest.raises(ValueError, match="wrong size"):
        executor.sample_again(plan, result, {7: bytes(9)})
    executor.launch(plan)
    with pytest.raises(RuntimeError, match="in flight"):
        executor.sample_again(plan, result, {7: forbids_all})
    executor.collect(plan.step_id)
    for counts in ({"presence_penalty": 0.5}, {"bad_words": ((5,),)}):
        plan = step(executor.info(), [1], 0, reset=replace(GREEDY, **counts))
        with pytest.raises(ValueError, match="counts what was sampled"):
            executor.sample_again(plan, run(executor, plan), {0: forbids_all})


def test_bad_words_end_nowhere_in_the_output(tiny: NativeExecutor) -> None:
    """Greedy, and each pair of tokens that came out is bad the next time."""
    words: list[tuple[int, ...]] = []
    for _ in range(6):
        output = [7]
        for position in range(12):
            reset = replace(GREEDY, bad_words=tuple(words), output=(7,)) if position == 0 else None
            output.append(run(tiny, step(tiny.info(), [output[-1]], position, reset=reset)).tokens[0])
        pairs = list(pairwise(output))
        assert not set(pairs) & set(words)
        words += pairs


def test_output_rows_beyond_the_workspace_are_computed_in_pieces(tmp_path: Path) -> None:
    """Log probabilities of all rows of a step, whatever the number of rows whose logits are held at once."""
    path = tiny_engine(tmp_path / "tiny.legato")
    found = []
    for max_seqs in (1, 3, 64):
        executor = open_native(path, threads=2, max_seqs=max_seqs)
        scored = replace(GREEDY, num_prompt_logprobs=2, num_logprobs=3)
        plan = step(executor.info(), TOKENS, 0, reset=scored)
        purposes = array("b", [OutputPurpose.PROMPT_LOGPROBS] * 49 + [OutputPurpose.SAMPLE])
        plan = replace(plan, out_purposes=purposes, out_targets=array("i", [*TOKENS[1:], -1]))
        result = run(executor, plan)
        assert list(result.tokens[:49]) == [-1] * 49
        found.append((result.tokens, result.logprobs, result.top_logprobs))
    assert found[0] == found[1] == found[2]
    reference = logits(executor, TOKENS)
    for i, target in enumerate(TOKENS[1:]):
        logprob, top = top_logprobs(reference[i], target, 2)
        np.testing.assert_allclose(found[0][1][i], logprob, atol=1e-5)
        assert [token for token, _ in found[0][2][i]] == [token for token, _ in top]


def test_prompts_are_scored_among_the_tokens_that_there_are(tiny: NativeExecutor) -> None:
    """Rows of the head behind the tokenizer's ids are padding: neither reported nor in the sum."""
    plan = step(tiny.info(), [1, 2, 3], 0, outputs=[0, 2], reset=replace(GREEDY, num_prompt_logprobs=37, vocab_size=37))
    purposes = array("b", [OutputPurpose.PROMPT_LOGPROBS, OutputPurpose.SAMPLE])
    result = run(tiny, replace(plan, out_purposes=purposes, out_targets=array("i", [2, -1])))
    logprob, top = top_logprobs(tiny.logits[0][:37], 2, 37)
    np.testing.assert_allclose(result.logprobs[0], logprob, atol=1e-5)
    assert [token for token, _ in result.top_logprobs[0]] == [token for token, _ in top]


def test_a_row_without_an_allowed_token_is_no_fault_of_the_model(tiny: NativeExecutor) -> None:
    plan = step(tiny.info(), [1, 2], 0, outputs=[1], reset=replace(GREEDY, bad_words=((5,),)))
    result = run(tiny, replace(plan, out_masks=array("i", [0]), masks=(bytes([1 << 5]) + bytes(9),)))
    assert list(result.tokens) == [-1]
    assert list(result.faults) == [0, 0]


def test_a_slot_may_allow_less_than_the_mask_and_more(tiny: NativeExecutor) -> None:
    only = replace(GREEDY, allowed_token_ids=(5, 5, 6))
    plan = step(tiny.info(), [1], 0, reset=only)
    assert run(tiny, plan).tokens[0] in (5, 6)
    masked = replace(plan, out_masks=array("i", [0]), masks=(bytes([1 << 6]) + bytes(9),))
    assert list(run(tiny, masked).tokens) == [6]
    apart = replace(plan, out_masks=array("i", [0]), masks=(bytes([1 << 7]) + bytes(9),))
    assert list(run(tiny, apart).tokens) == [-1]
    assert run(tiny, step(tiny.info(), [1], 0, reset=GREEDY)).tokens == run(tiny, step(tiny.info(), [1], 0)).tokens


def test_biases_leave_the_logits_alone(tiny: NativeExecutor) -> None:
    run(tiny, step(tiny.info(), [1], 0, reset=GREEDY))
    plain = np.array(tiny.logits)
    biased = replace(GREEDY, bias_token_ids=(9, 9), bias_values=(60.0, 40.0), repetition_penalty=2.0, prompt=(9,))
    assert list(run(tiny, step(tiny.info(), [1], 0, reset=biased)).tokens) == [9]
    np.testing.assert_array_equal(tiny.logits, plain)


def test_a_reset_forgets_what_was_counted(tiny: NativeExecutor) -> None:
    penalized = replace(GREEDY, frequency_penalty=2.0)
    first = [run(tiny, step(tiny.info(), [5], 0, reset=penalized)).tokens[0] for _ in range(2)]
    assert first[0] == first[1]
    again = [run(tiny, step(tiny.info(), [5], 0)).tokens[0] for _ in range(3)]
    assert len({first[0], *again}) > 1
