"""Bodies of /v1/completions and /v1/chat/completions."""

import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from legato.core.errors import RequestError
from legato.core.types import SamplingParams
from legato.protocol.messages import check_messages
from legato.protocol.parse import Accepted, Body, parse_body

__all__ = [
    "ChatBody",
    "CompletionBody",
    "GenerateBody",
    "Prompt",
    "parse_chat",
    "parse_completion",
    "template_arguments",
]

Prompt = str | list[int]

_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")

MAX_PROMPTS = 1024
MAX_TOP_LOGPROBS = 20

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
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    cache_salt: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, defaults: SamplingParams) -> SamplingParams:
        """`defaults` with what this body sets. Ranges are not checked here."""
        given = {name: value for name in _PLAIN if (value := getattr(self, name)) is not None}
        if self.stop is not None:
            given["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if self.stop_token_ids is not None:
            given["stop_token_ids"] = tuple(self.stop_token_ids)
        if self.logit_bias is not None:
            given["logit_bias"] = {_token_id(key): value for key, value in self.logit_bias.items()}
        if self.allowed_token_ids is not None:
            given["allowed_token_ids"] = tuple(self.allowed_token_ids)
        return replace(defaults, max_tokens=self._max_tokens(), logprobs=self._logprobs(), **given)

    def _max_tokens(self) -> int | None:
        return self.max_tokens

    @abstractmethod
    def _logprobs(self) -> int | None:
        """Alternatives to report for each token; None: no log probabilities at all."""


class CompletionBody(GenerateBody):
    """POST /v1/completions."""

    prompt: Any
    add_special_tokens: bool = True
    logprobs: int | None = None

    def prompts(self) -> list[Prompt]:
        """The prompts, one or many, each a text or token ids. Empty ones are left to the tokenizer to judge."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if isinstance(prompt, list) and prompt:
            if _is_ids(prompt):
                return [prompt]
            if len(prompt) > MAX_PROMPTS:
                raise RequestError(f"prompt holds {len(prompt)} prompts, at most {MAX_PROMPTS}", param="prompt")
            if all(isinstance(p, str) for p in prompt) or all(isinstance(p, list) and _is_ids(p) for p in prompt):
                return prompt
        if prompt == []:
            raise RequestError("prompt is empty", param="prompt", code="empty_prompt")
        raise RequestError(
            "prompt must be a string, a list of strings, a list of token ids, or a list of lists of token ids",
            param="prompt",
            code="invalid_type",
        )

    def _logprobs(self) -> int | None:
        return self.logprobs


class ChatBody(GenerateBody):
    """POST /v1/chat/completions."""

    messages: list[Any]
    max_completion_tokens: int | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool = False
    top_logprobs: int = 0

    def template_arguments(self) -> dict[str, Any]:
        """Keyword arguments for the chat template."""
        return template_arguments(self.add_generation_prompt, self.chat_template_kwargs)

    def talk(self) -> list[dict[str, Any]]:
        """The messages, their roles and fields checked."""
        return check_messages(self.messages)

    def _max_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def _logprobs(self) -> int | None:
        if not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise RequestError(f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}", param="top_logprobs")
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
        return self.top_logprobs if self.logprobs else None


def _token_id(key: str) -> int:
    """A key of logit_bias. Leading zeros are refused, so that no id is there twice."""
    if _TOKEN_ID.fullmatch(key) is None:
        raise RequestError("the keys of logit_bias must be token ids", param="logit_bias")
    return int(key)


def template_arguments(add_generation_prompt: bool, kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Keyword arguments for a chat template. RequestError where `chat_template_kwargs` sets what has its own field."""
    given = kwargs or {}
    for name in ("messages", "tools", "add_generation_prompt"):
        if name in given:
            raise RequestError(f"chat_template_kwargs may not set {name}", param="chat_template_kwargs")
    return {"add_generation_prompt": add_generation_prompt, **given}


def _is_ids(value: list[Any]) -> bool:
    return all(type(token) is int for token in value)


def parse_completion(data: bytes) -> CompletionBody:
    """A checked body of /v1/completions. RequestError names the field."""
    return _check(parse_body(CompletionBody, data, _REFUSED_COMPLETION))


def parse_chat(data: bytes) -> ChatBody:
    """A checked body of /v1/chat/completions. RequestError names the field."""
    return _check(parse_body(ChatBody, data, _REFUSED_CHAT))


def _check(body: _G) -> _G:
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options is only allowed with stream: true", param="stream_options")
    return body


# Names that OpenAI's or vLLM's API has and this server does not, with the values that ask for nothing.
_NOTHING: tuple[object, ...] = ()
_REFUSED_BOTH: Mapping[str, tuple[object, ...]] = {
    "echo": (False,),
    "use_beam_search": (False,),
    "response_format": ({"type": "text"},),
    "priority": (0,),
    "bad_words": ([],),
    "spaces_between_special_tokens": (True,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "stream_interval": (1,),
    **dict.fromkeys(
        (
            *("best_of", "documents", "ec_transfer_params", "kv_transfer_params"),
            *("length_penalty", "logprob_token_ids", "media_io_kwargs", "mm_processor_kwargs", "prompt_logprobs"),
            *("repetition_detection", "request_id", "session_id", "structured_outputs", "thinking_token_budget"),
            *("truncate_prompt_tokens", "truncation_side", "vllm_xargs"),
        ),
        _NOTHING,
    ),
}
_REFUSED_COMPLETION = MappingProxyType(
    {
        **_REFUSED_BOTH,
        "best_of": (1,),
        "suffix": ("",),
        "prompt_embeds": _NOTHING,
    }
)
_REFUSED_CHAT = MappingProxyType(
    {
        **_REFUSED_BOTH,
        "tools": _NOTHING,
        "tool_choice": ("none",),
        "functions": _NOTHING,
        "function_call": ("none",),
        "parallel_tool_calls": (True,),
        "modalities": (["text"],),
        "audio": _NOTHING,
        "prediction": _NOTHING,
        "reasoning_effort": _NOTHING,
        "include_reasoning": (True,),
        "verbosity": _NOTHING,
        "web_search_options": _NOTHING,
        "chat_template": _NOTHING,
        "continue_final_message": (False,),
        "add_special_tokens": (False,),
    }
)
