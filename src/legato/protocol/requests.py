"""What the bodies of /v1/completions and /v1/chat/completions share."""

import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, TypeVar

from legato.core.errors import RequestError
from legato.core.types import BeamOptions, SamplingParams, Service
from legato.protocol.beams import beam_options
from legato.protocol.cache_control import CacheControl
from legato.protocol.parse import Accepted, Body
from legato.protocol.responses import Style
from legato.protocol.structured import ResponseFormat, StructuredOutputs, grammar_of

__all__ = ["NOTHING", "REFUSED", "GenerateBody", "StreamOptions", "checked"]

MAX_REQUEST_ID = 128

_REQUEST_ID = re.compile(rf"[!-~]{{1,{MAX_REQUEST_ID}}}")
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")

_G = TypeVar("_G", bound="GenerateBody")


# Fields that SamplingParams has under the same name and type.
_PLAIN = (
    *("n", "temperature", "top_p", "top_k", "min_p", "seed"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("min_tokens", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens"),
)


class StreamOptions(Body):
    """What a stream holds beside the choices."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerateBody(Accepted):
    """What both bodies share. A field that is None takes the model's default."""

    model: str | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    logprob_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    cache_salt: str | None = None
    cache_control: CacheControl | None = None
    priority: int | None = None
    ttft_target_ms: float | None = None
    e2e_target_ms: float | None = None
    use_beam_search: bool = False
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    stream_interval: int | None = None
    request_id: str | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False

    def style(self, stream_interval: int) -> Style:
        """How the answer is to look. stream_interval: the server's own, which a request may only make longer."""
        options = self.stream_options or StreamOptions()
        return Style(
            stream=self.stream,
            include_usage=options.include_usage,
            continuous_usage=options.continuous_usage_stats,
            interval=max(stream_interval, self.stream_interval or 1),
            token_ids=self.return_token_ids,
            tokens_as_ids=self.return_tokens_as_token_ids,
            prompt_logprobs=self.prompt_logprobs,
        )

    def beam(self) -> BeamOptions | None:
        """Beam search, where it is asked for; `n` is its width. RequestError for what does not go with it."""
        return beam_options({name: getattr(self, name) for name in type(self).model_fields})

    def sampling(self, defaults: SamplingParams) -> SamplingParams:
        """`defaults` with what this body sets. Ranges are not checked here."""
        given = {name: value for name in _PLAIN if (value := getattr(self, name)) is not None}
        if self.stop is not None:
            given["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        for name in ("stop_token_ids", "allowed_token_ids", "bad_words", "logprob_token_ids"):
            if (value := getattr(self, name)) is not None:
                given[name] = tuple(value)
        if self.logit_bias is not None:
            given["logit_bias"] = {_token_id(key): value for key, value in self.logit_bias.items()}
        if (grammar := grammar_of(self.response_format, self.structured_outputs)) is not None:
            given["grammar"] = grammar
        if self.use_beam_search:
            if grammar is not None:
                name = "response_format" if self.structured_outputs is None else "structured_outputs"
                raise RequestError(f"{name} is not supported with use_beam_search", param=name)
            given["temperature"] = 1.0  # unread; any above 0 allows several choices
        return replace(
            defaults,
            max_tokens=self._max_tokens(),
            logprobs=self._logprobs(),
            prompt_logprobs=self._prompt_logprobs(),
            **given,
        )

    def service(self) -> Service:
        """What it asks of the scheduling policy. Whose request it is, is not said in a body."""
        ttft, e2e = self.ttft_target_ms, self.e2e_target_ms
        return Service(
            priority=self.priority or 0,
            ttft_s=None if ttft is None else ttft / 1000,
            e2e_s=None if e2e is None else e2e / 1000,
        )

    def _max_tokens(self) -> int | None:
        return self.max_tokens

    def _prompt_logprobs(self) -> int | None:
        """Alternatives to compute for each token of the prompt; None: no log probabilities of it at all."""
        return self.prompt_logprobs

    @abstractmethod
    def _logprobs(self) -> int | None:
        """Alternatives to report for each token; None: no log probabilities at all."""


def _token_id(key: str) -> int:
    """A key of logit_bias. Leading zeros are refused, so that no id is there twice."""
    if _TOKEN_ID.fullmatch(key) is None:
        raise RequestError("the keys of logit_bias must be token ids", param="logit_bias")
    return int(key)


def checked(body: _G) -> _G:
    """The body, or a RequestError where its fields contradict each other."""
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options is only allowed with stream: true", param="stream_options")
    options = body.stream_options
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        raise RequestError(
            "stream_options.continuous_usage_stats needs include_usage: true",
            param="stream_options.continuous_usage_stats",
        )
    if body.prompt_logprobs is not None and body.stream:
        raise RequestError("prompt_logprobs is not supported with stream: true", param="prompt_logprobs")
    if body.truncation_side is not None and body.truncate_prompt_tokens is None:
        raise RequestError("truncation_side needs truncate_prompt_tokens", param="truncation_side")
    if body.stream_interval is not None and body.stream_interval < 1:
        raise RequestError(f"stream_interval must be at least 1, got {body.stream_interval}", param="stream_interval")
    if body.request_id is not None and not _REQUEST_ID.fullmatch(body.request_id):
        raise RequestError(
            f"request_id must be 1 to {MAX_REQUEST_ID} printable ASCII characters without spaces", param="request_id"
        )
    return body


# Names that OpenAI's or another engine's API has and this server does not, with the values that ask for nothing.
NOTHING: tuple[object, ...] = ()
REFUSED: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(
        (
            *("best_of", "ec_transfer_params", "kv_transfer_params"),
            *("media_io_kwargs", "mm_processor_kwargs"),
            *("repetition_detection", "session_id", "thinking_token_budget"),
            *("mm_payload", "vllm_xargs"),
            *("adapter_id", "lora_path", "lora_request"),
        ),
        NOTHING,
    ),
    **dict.fromkeys(("return_prompt_text", "return_token_offsets", "watermarking"), (False,)),
}
