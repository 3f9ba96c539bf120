"""What the offline API returns, in vLLM's shape."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from legato.core.types import PromptLogprobs
from legato.engine.outputs import Output
from legato.tokenizer.tokenizer import Tokenizer

__all__ = [
    "BeamSearchOutput",
    "BeamSearchSequence",
    "CompletionOutput",
    "Logprob",
    "RequestOutput",
    "add_output",
    "beam_output",
    "prompt_logprobs",
]


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural logarithm of a token's probability. rank counts from 1; None for the chosen token beyond the best."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One answer. `logprobs` and `cumulative_logprob` are None unless SamplingParams.logprobs was set."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None


@dataclass(slots=True)
class RequestOutput:
    """A prompt and its answers, one for each of SamplingParams.n. The seed repeats them."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    num_cached_tokens: int = 0
    seed: int | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None  # SamplingParams.prompt_logprobs; the first is None


@dataclass(slots=True)
class BeamSearchSequence:
    """One beam. `tokens` and `text` begin with the prompt; `logprobs` are of the output."""

    tokens: list[int]
    logprobs: list[dict[int, Logprob]]
    cum_logprob: float
    text: str
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The beams of a prompt, best first."""

    sequences: list[BeamSearchSequence]


def add_output(answer: CompletionOutput, output: Output, tokenizer: Tokenizer, best: int) -> None:
    answer.text += output.text
    answer.token_ids += output.tokens
    if output.logprobs:
        answer.cumulative_logprob = (answer.cumulative_logprob or 0.0) + sum(output.logprobs)
        answer.logprobs = answer.logprobs or []
        tops = output.top_logprobs or ((),) * len(output.tokens)
        for token, logprob, top in zip(output.tokens, output.logprobs, tops, strict=True):
            answer.logprobs.append(_logprobs(token, logprob, top, best, tokenizer))
    if output.finish is not None:
        answer.finish_reason = output.finish.value
        answer.stop_reason = output.stop
        answer.error = output.error


def _logprobs(
    token: int, logprob: float, top: Sequence[tuple[int, float]], best: int, tokenizer: Tokenizer
) -> dict[int, Logprob]:
    """The `best` first ones of `top` have a rank; those behind them were asked for by id."""

    def text(id: int) -> str:
        return tokenizer.token_bytes(id).decode(errors="replace")

    ranked: dict[int, Logprob] = {}
    for rank, (id, value) in enumerate(top, 1):
        ranked.setdefault(id, Logprob(value, rank if rank <= best else None, text(id)))
    return ranked if token in ranked else {token: Logprob(logprob, None, text(token)), **ranked}


def prompt_logprobs(
    prompt: Sequence[int], scores: PromptLogprobs, tokenizer: Tokenizer
) -> list[dict[int, Logprob] | None]:
    """`RequestOutput.prompt_logprobs`."""
    known = enumerate(zip(prompt[1:], scores.logprobs, strict=True))
    return [
        None,
        *(_logprobs(token, logprob, scores.top(i), scores.count, tokenizer) for i, (token, logprob) in known),
    ]


def beam_output(result: RequestOutput, tokenizer: Tokenizer, skip_special_tokens: bool) -> BeamSearchOutput:
    """The choices of a search as its beams."""
    prompt = result.prompt_token_ids
    return BeamSearchOutput(
        [
            BeamSearchSequence(
                tokens=[*prompt, *answer.token_ids],
                logprobs=answer.logprobs or [],
                cum_logprob=answer.cumulative_logprob or 0.0,
                text=tokenizer.decode([*prompt, *answer.token_ids], skip_special_tokens=skip_special_tokens),
                finish_reason=answer.finish_reason,
                stop_reason=answer.stop_reason,
            )
            for answer in result.outputs
        ]
    )
