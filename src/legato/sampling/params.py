"""Check sampling parameters, and turn them into what an executor installs in a sequence slot."""

import sys
from collections.abc import Sequence

from legato.core.errors import RequestError
from legato.core.types import Request, SamplingParams, SlotReset

__all__ = ["MAX_LOGPROBS", "may_close", "may_retry", "slot_reset", "validate"]

MAX_CHOICES = 128
MAX_STOP_STRINGS = 4
MAX_LOGPROBS = 20
MAX_BAD_WORDS = 128
MAX_LOGPROB_IDS = 128
MAX_BIASES = 1024  # entries of logit_bias, and of allowed_token_ids: they wait in memory with their request
BIAS_LIMIT = 100.0
GREEDY_BELOW = 1e-5  # lower temperatures mean 0
LOWEST_TEMPERATURE = 0.01  # others are raised to this, so that logits / temperature stays finite
REPETITION_PENALTIES = (1e-6, 1e6)  # logits that are divided or multiplied by it stay finite in fp32
_INT32_MAX = 2**31 - 1
_LARGEST_FLOAT = sys.float_info.max
_LARGEST_SHOWN = 10**20
_SHOWN_CHARACTERS = 64


def validate(params: SamplingParams, vocab_size: int, max_position: int) -> None:
    """Check every field on its own and against the others.

    Args:
        params: as the client gave them; `max_tokens` and `seed` may still be None.
        vocab_size: token ids are below this.
        max_position: length of the context; `max_tokens` may not exceed it.

    Raises:
        RequestError: with `param` set to the first field that is wrong.
    """
    _check_int("n", params.n, 1, MAX_CHOICES)
    _check_float("temperature", params.temperature, 0.0, 2.0)
    if params.n > 1 and params.temperature < GREEDY_BELOW:
        raise RequestError("n must be 1 when temperature is 0: all choices would be the same", param="n")
    _check_float("top_p", params.top_p, 0.0, 1.0)
    if params.top_p == 0:
        raise RequestError("top_p must be above 0", param="top_p")
    _check_int("top_k", params.top_k, -1, None)
    _check_float("min_p", params.min_p, 0.0, 1.0)
    _check_float("presence_penalty", params.presence_penalty, -2.0, 2.0)
    _check_float("frequency_penalty", params.frequency_penalty, -2.0, 2.0)
    _check_float("repetition_penalty", params.repetition_penalty, *REPETITION_PENALTIES)
    if params.seed is not None:
        _check_int("seed", params.seed, -(2**63), 2**63 - 1)
    _check_stops(params, vocab_size)
    _check_lengths(params, max_position)
    _check_token_sets(params, vocab_size)
    _check_bad_words(params.bad_words)
    _check_logprobs(params, vocab_size)
    for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "skip_reading_prefix_cache"):
        if not isinstance(getattr(params, name), bool):
            raise RequestError(f"{name} must be true or false", param=name)


def may_close(params: SamplingParams) -> bool:
    """Whether a grammar may choose for an end before max_tokens: not where other fields might leave nothing then."""
    return not (params.ignore_eos or params.min_tokens or params.allowed_token_ids or params.bad_words)


def may_retry(params: SamplingParams) -> bool:
    """Whether tokens may be sampled without a mask, and again with it where it refuses them: with the mask alone, the
    answer would be as likely.

    The best of all tokens is also the best of those that fit. Of sampled ones, p of them all becomes p + (1 - z) p / z
    = p / z for those that fit, z of them all. Filters are not so: how much they leave depends on the mask. Penalties
    and bad_words count what was sampled.
    """
    if (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) != (1.0, 0.0, 0.0):
        return False
    filtered = params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0
    return not params.bad_words and (params.temperature < GREEDY_BELOW or not filtered)


def slot_reset(request: Request, choice: int, slot: int, output: Sequence[int]) -> SlotReset:
    """What an executor needs to sample for choice `choice` of `request` in sequence slot `slot`.

    `output` holds the tokens that the sequence has produced so far (some, after a preemption). `request.params` are
    valid and have a seed.
    """
    params = request.params
    if params.seed is None:
        raise ValueError(f"request {request.request_id} has no seed")
    temperature = 0.0 if params.temperature < GREEDY_BELOW else max(params.temperature, LOWEST_TEMPERATURE)
    repeats = params.repetition_penalty != 1.0
    counts = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
    bias = sorted((params.logit_bias or {}).items())
    banned = request.end_token_ids.union(params.stop_token_ids) if params.min_tokens else ()
    looks_back = repeats or counts or any(len(word) > 1 for word in request.bad_words)
    return SlotReset(
        slot=slot,
        temperature=temperature,
        top_p=params.top_p,
        top_k=min(max(params.top_k, 0), _INT32_MAX),
        min_p=params.min_p,
        seed=params.seed,
        choice=choice,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        num_logprobs=-1 if params.logprobs is None else params.logprobs,
        min_position=len(request.prompt) + params.min_tokens if params.min_tokens else 0,
        end_token_ids=tuple(sorted(banned)),
        prompt=tuple(request.prompt) if repeats else (),
        output=tuple(output) if looks_back else (),
        bias_token_ids=tuple(token for token, _ in bias),
        bias_values=tuple(min(max(float(value), -BIAS_LIMIT), BIAS_LIMIT) for _, value in bias),
        allowed_token_ids=params.allowed_token_ids or (),
        bad_words=request.bad_words,
        vocab_size=request.vocab_size,
        logprob_token_ids=params.logprob_token_ids,
        num_prompt_logprobs=-1 if params.prompt_logprobs is None else params.prompt_logprobs,
    )


def _check_stops(params: SamplingParams, vocab_size: int) -> None:
    if len(params.stop) > MAX_STOP_STRINGS:
        raise RequestError(
            f"stop holds {len(params.stop)} strings, at most {MAX_STOP_STRINGS} are allowed", param="stop"
        )
    if not all(isinstance(text, str) and text for text in params.stop):
        raise RequestError("stop must hold non-empty strings", param="stop")
    for token in params.stop_token_ids:
        _check_token("stop_token_ids", token, vocab_size)


def _check_bad_words(words: Sequence[str]) -> None:
    if len(words) > MAX_BAD_WORDS:
        raise RequestError(
            f"bad_words holds {len(words)} words, at most {MAX_BAD_WORDS} are allowed", param="bad_words"
        )
    if not all(isinstance(word, str) and word for word in words):
        raise RequestError("bad_words must hold non-empty strings", param="bad_words")


def _check_logprobs(params: SamplingParams, vocab_size: int) -> None:
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(params, name)
        if count is not None:
            _check_int(name, count, 0, min(MAX_LOGPROBS, vocab_size))
    ids = params.logprob_token_ids
    if ids and params.logprobs is None:
        raise RequestError("logprob_token_ids needs logprobs", param="logprob_token_ids")
    if len(ids) > MAX_LOGPROB_IDS:
        raise RequestError(
            f"logprob_token_ids holds {len(ids)} token ids, at most {MAX_LOGPROB_IDS} are allowed",
            param="logprob_token_ids",
        )
    for token in ids:
        _check_token("logprob_token_ids", token, vocab_size)


def _check_token_sets(params: SamplingParams, vocab_size: int) -> None:
    allowed, bias = params.allowed_token_ids, params.logit_bias or {}
    if allowed is not None and not allowed:
        raise RequestError("allowed_token_ids is empty: nothing could be chosen", param="allowed_token_ids")
    for name, tokens in (("logit_bias", tuple(bias)), ("allowed_token_ids", allowed or ())):
        if len(tokens) > MAX_BIASES:
            raise RequestError(f"{name} holds {len(tokens)} token ids, at most {MAX_BIASES} are allowed", param=name)
        for token in tokens:
            _check_token(name, token, vocab_size)
    for value in bias.values():
        _check_float("logit_bias", value, -_LARGEST_FLOAT, None)


def _check_lengths(params: SamplingParams, max_position: int) -> None:
    if params.max_tokens is not None:
        least = 1 if params.prompt_logprobs is None else 0
        _check_int("max_tokens", params.max_tokens, least, max_position)
    _check_int("min_tokens", params.min_tokens, 0, max_position if params.max_tokens is None else params.max_tokens)


def _check_token(name: str, token: object, vocab_size: int) -> None:
    if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
        limits = f"token ids must be integers from 0 to {vocab_size - 1}"
        raise RequestError(f"{name}: {limits}, got {_shown(token)}", param=name)


def _check_int(name: str, value: object, low: int, high: int | None) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise RequestError(f"{name} must be an integer, got {_shown(value)}", param=name)
    _check_range(name, value, low, high)


def _check_float(name: str, value: object, low: float, high: float | None) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise RequestError(f"{name} must be a finite number, got {_shown(value)}", param=name)
    if not abs(value) <= _LARGEST_FLOAT:
        raise RequestError(f"{name} must be a finite number", param=name)
    _check_range(name, value, low, high)


def _check_range(name: str, value: float, low: float, high: float | None) -> None:
    if value < low or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"between {low} and {high}"
        raise RequestError(f"{name} must be {limits}, got {_shown(value)}", param=name)


def _shown(value: object) -> str:
    """A value for an error message. What a client sends may have thousands of digits or characters."""
    if isinstance(value, int) and abs(value) >= _LARGEST_SHOWN:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
