"""The body of /v1/chat/completions."""

from types import MappingProxyType
from typing import Any, Literal

from legato.core.answers import ToolUse
from legato.core.errors import RequestError
from legato.protocol.cache_control import Hint, hints_of
from legato.protocol.messages import check_messages
from legato.protocol.parse import Body, parse_body
from legato.protocol.requests import NOTHING, REFUSED, GenerateBody, checked
from legato.protocol.tools import tool_use

__all__ = ["ChatBody", "TemplateFields", "parse_chat"]

MAX_TOP_LOGPROBS = 20

_OWN_FIELDS = (
    *("messages", "tools", "tool_format", "documents", "chat_template"),
    *("add_generation_prompt", "continue_final_message", "add_special_tokens"),
)


class TemplateFields(Body):
    """How messages become a prompt."""

    add_generation_prompt: bool | None = None  # true, unless the final message is continued
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    tools: list[Any] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None

    def tool_use(self, ignored: list[str] | None = None) -> ToolUse:
        """The tools, and whether they are to be called. ignored: as of `parse_body`."""
        return tool_use(self.tools, None, True, ignored)

    def template_arguments(self) -> dict[str, Any]:
        """Keyword arguments of legato.engine.inputs.Inputs.chat, those for the template itself among them.

        RequestError where `chat_template_kwargs` sets what has its own field.
        """
        given = self.chat_template_kwargs or {}
        if self.reasoning_effort not in (None, given.get("reasoning_effort", self.reasoning_effort)):
            raise RequestError("chat_template_kwargs sets another reasoning_effort", param="reasoning_effort")
        for name in _OWN_FIELDS:
            if name in given:
                raise RequestError(f"chat_template_kwargs may not set {name}", param="chat_template_kwargs")
        if self.continue_final_message and self.add_generation_prompt:
            raise RequestError(
                "add_generation_prompt must be false where continue_final_message is true",
                param="add_generation_prompt",
            )
        adds = self.add_generation_prompt
        own = {
            "continue_final_message": self.continue_final_message or None,
            "chat_template": self.chat_template,
            "documents": self.documents,
            "reasoning_effort": self.reasoning_effort,
        }
        return {
            "add_generation_prompt": not self.continue_final_message if adds is None else adds,
            **{name: value for name, value in own.items() if value is not None},
            **given,
        }


class ChatBody(GenerateBody, TemplateFields):
    """POST /v1/chat/completions."""

    messages: list[Any]
    max_completion_tokens: int | None = None
    add_special_tokens: bool = False
    echo: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    include_reasoning: bool = True

    def tool_use(self, ignored: list[str] | None = None) -> ToolUse:
        use = tool_use(self.tools, self.tool_choice, self.parallel_tool_calls, ignored)
        if use.held and self.use_beam_search:
            raise RequestError("calls held to a grammar are not supported with use_beam_search", param="tool_choice")
        return use

    def talk(self, ignored: list[str] | None = None) -> list[dict[str, Any]]:
        """The messages, their roles and fields checked. ignored: as of `parse_body`."""
        return check_messages(self.messages, ignored)

    def named(self, error: RequestError) -> RequestError:
        """The same, with the name that this body gave the length of the answer."""
        if error.param != "max_tokens" or self.max_completion_tokens is None:
            return error
        name = "max_completion_tokens"
        return RequestError(str(error).replace(error.param, name, 1), param=name, code=error.code)

    def hints(self) -> list[Hint]:
        """Where a prefix to be pinned ends. Call `talk` and `tool_use` first, which check them."""
        return hints_of(self.messages, self.tools or (), self.cache_control)

    def _max_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def _logprobs(self) -> int | None:
        if not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise RequestError(f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}", param="top_logprobs")
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
        return self.top_logprobs if self.logprobs else None


def parse_chat(data: bytes, ignored: list[str] | None = None) -> ChatBody:
    """A checked body of /v1/chat/completions. RequestError names the field. ignored: see parse_body."""
    body = checked(parse_body(ChatBody, data, _REFUSED, ignored))
    if body.echo and not body.continue_final_message:
        raise RequestError("echo repeats the final message, and so needs continue_final_message: true", param="echo")
    return body


_REFUSED = MappingProxyType(
    {
        **REFUSED,
        "functions": NOTHING,
        "function_call": ("none",),
        "modalities": (["text"],),
        "audio": NOTHING,
        "prediction": NOTHING,
        "verbosity": NOTHING,
        "web_search_options": NOTHING,
    }
)
