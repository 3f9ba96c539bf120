"""Rows of a step that were sampled a second time."""

from array import array
from collections.abc import Sequence
from dataclasses import replace

from legato.core.types import StepResult

__all__ = ["with_rows"]


def with_rows(
    result: StepResult,
    outputs: Sequence[int],
    tokens: "array[int]",
    logprobs: "array[float]",
    top_logprobs: Sequence[tuple[tuple[int, float], ...]],
) -> StepResult:
    """A step's result with other values for these output rows; `top_logprobs` is read where the result has some."""
    all_tokens, all_logprobs, all_top = result.tokens[:], result.logprobs[:], list(result.top_logprobs)
    for i, output in enumerate(outputs):
        all_tokens[output], all_logprobs[output] = tokens[i], logprobs[i]
        if all_top:
            all_top[output] = top_logprobs[i]
    return replace(result, tokens=all_tokens, logprobs=all_logprobs, top_logprobs=tuple(all_top))
