"""The body of /v1/chat/completions."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from legato.core.errors import RequestError
from legato.protocol.cache_control import Hint, hints_of
from legato.protocol.messages import check_messages
from legato.protocol.parse import parse_body
from legato.protocol.requests import NOTHING, REFUSED, GenerateBody, checked

__all__ = ["ChatBody", "parse_chat", "template_arguments"]

MAX_TOP_LOGPROBS = 20


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

    def hints(self) -> list[Hint]:
        """Where a prefix to be pinned ends. Call `talk` first, which checks them."""
        return hints_of(self.messages, self.cache_control)

    def _max_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def _logprobs(self) -> int | None:
        if not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise RequestError(f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}", param="top_logprobs")
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
        return self.top_logprobs if self.logprobs else None


def template_arguments(add_generation_prompt: bool, kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Keyword arguments for a chat template. RequestError where `chat_template_kwargs` sets what has its own field."""
    given = kwargs or {}
    for name in ("messages", "tools", "add_generation_prompt"):
        if name in given:
            raise RequestError(f"chat_template_kwargs may not set {name}", param="chat_template_kwargs")
    return {"add_generation_prompt": add_generation_prompt, **given}


def parse_chat(data: bytes) -> ChatBody:
    """A checked body of /v1/chat/completions. RequestError names the field."""
    return checked(parse_body(ChatBody, data, _REFUSED))


_REFUSED = MappingProxyType(
    {
        **REFUSED,
        "tools": NOTHING,
        "tool_choice": ("none",),
        "functions": NOTHING,
        "function_call": ("none",),
        "parallel_tool_calls": (True,),
        "modalities": (["text"],),
        "audio": NOTHING,
        "prediction": NOTHING,
        "reasoning_effort": NOTHING,
        "include_reasoning": (True,),
        "verbosity": NOTHING,
        "web_search_options": NOTHING,
        "chat_template": NOTHING,
        "echo": (False,),
        "continue_final_message": (False,),
        "add_special_tokens": (False,),
    }
)
