"""The reference sampler: what every executor's sampler must agree with. Written to be read, not to be fast."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from legato.core.types import SlotReset
from legato.sampling.uniform import uniform

__all__ = ["SampledToken", "choose", "penalize", "sample_row", "top_logprobs"]

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SampledToken:
    """token -1: the row held NaN or +Inf, or nothing was allowed. logprob is NaN where none was asked for."""

    token: int
    logprob: float
    top_logprobs: tuple[tuple[int, float], ...]


def sample_row(
    logits: Floats, params: SlotReset, output: Sequence[int], position: int, mask: bytes | None = None
) -> SampledToken:
    """Choose the token that follows the row at `position`.

    Args:
        logits: float32 [vocab], as the model gives them.
        params: what is installed in the row's sequence slot.
        output: all tokens that the sequence has produced so far, those of `params.output` included.
        position: absolute position of the row; the sampled token gets position + 1.
        mask: one bit per token id, little-endian, 1 = allowed; None allows all.
    """
    if np.isnan(logits).any() or np.isposinf(logits).any():
        return SampledToken(-1, float("nan"), ())
    adjusted = penalize(logits, params, output)
    for biased, value in zip(params.bias_token_ids, params.bias_values, strict=True):
        adjusted[biased] += np.float32(value)
    if position + 1 < params.min_position:
        adjusted[list(params.end_token_ids)] = -np.inf
    for *begun, last in params.bad_words:
        if begun == list(output)[len(output) - len(begun) :]:
            adjusted[last] = -np.inf
    if mask is not None:
        allowed = np.unpackbits(np.frombuffer(mask, np.uint8), count=len(logits), bitorder="little")
        adjusted[allowed == 0] = -np.inf
    if params.allowed_token_ids:
        forbidden = np.ones(len(logits), bool)
        forbidden[list(params.allowed_token_ids)] = False
        adjusted[forbidden] = -np.inf
    if params.vocab_size:  # rows behind the tokenizer's ids are padding
        logits, adjusted = logits[: params.vocab_size], adjusted[: params.vocab_size]
    if np.isneginf(adjusted).all():
        return SampledToken(-1, float("nan"), ())
    # A token drawn without the mask may have been refused, which tells of its number: a row with one has its own.
    attempt = 0 if mask is None else 1
    token = choose(adjusted, params, uniform(params.seed, params.choice, position + 1, attempt))
    if params.num_logprobs < 0:
        return SampledToken(token, float("nan"), ())
    logprob, best = top_logprobs(logits, token, params.num_logprobs)
    others = tuple((other, top_logprobs(logits, other, 0)[0]) for other in params.logprob_token_ids)
    return SampledToken(token, logprob, best + others)


def penalize(logits: Floats, params: SlotReset, output: Sequence[int]) -> Floats:
    """A copy of `logits` with the penalties applied. Repetition sees prompt and output, the others output only."""
    adjusted = logits.astype(np.float32, copy=True)
    if params.repetition_penalty != 1.0:
        seen = sorted({*params.prompt, *output})
        values = adjusted[seen]
        factor = np.float32(params.repetition_penalty)
        adjusted[seen] = np.where(values > 0, values / factor, values * factor)
    for token, count in Counter(output).items():
        adjusted[token] -= np.float32(params.presence_penalty)
        adjusted[token] -= np.float32(params.frequency_penalty) * np.float32(count)
    return adjusted


def choose(logits: Floats, params: SlotReset, u: float) -> int:
    """The token id at quantile `u` of the filtered distribution, or the best one at temperature 0."""
    if params.temperature == 0.0:
        return int(np.argmax(logits))  # the lowest id on a tie
    scaled = logits.astype(np.float64) / params.temperature
    weights = np.exp(scaled - scaled.max())
    kept = np.flatnonzero((weights > 0) & (weights >= params.min_p))  # the largest weight is 1
    kept = kept[np.argsort(-scaled[kept], kind="stable")]  # best first, ties by lower id
    if params.top_k > 0:
        kept = kept[: params.top_k]
    if params.top_p < 1.0:
        sums = np.cumsum(weights[kept])
        kept = kept[: int(np.searchsorted(sums, params.top_p * sums[-1])) + 1]
    kept = np.sort(kept)
    sums = np.cumsum(weights[kept])
    return int(kept[np.searchsorted(sums, u * sums[-1], side="right")])


def top_logprobs(logits: Floats, token: int, count: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Log probabilities of `token` and of the `count` best tokens, best first, ties by lower id. From raw logits."""
    wide = logits.astype(np.float64)
    logprobs = wide - wide.max()
    logprobs -= np.log(np.exp(logprobs).sum())
    best: Ids = np.argsort(-wide, kind="stable")[:count]
    return float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in best)
