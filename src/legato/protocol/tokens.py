"""Bodies of /tokenize and /detokenize."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from legato.core.errors import RequestError
from legato.protocol.chat import template_arguments
from legato.protocol.messages import check_messages
from legato.protocol.parse import Body, parse_body

__all__ = ["DetokenizeBody", "TokenizeBody", "parse_detokenize", "parse_tokenize"]


class TokenizeBody(Body):
    """POST /tokenize: a prompt as /v1/completions takes it, or messages as /v1/chat/completions does."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool = False

    def talk(self) -> list[dict[str, Any]]:
        """The messages, their roles and fields checked."""
        return check_messages(self.messages or [])

    def template_arguments(self) -> dict[str, Any]:
        """Keyword arguments for the chat template."""
        return template_arguments(self.add_generation_prompt, self.chat_template_kwargs)


class DetokenizeBody(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]


def parse_tokenize(data: bytes) -> TokenizeBody:
    """A checked body of /tokenize. RequestError names the field."""
    body = parse_body(TokenizeBody, data, _REFUSED)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give prompt or messages, one of them", param="prompt")
    if body.prompt is None and body.add_special_tokens:
        raise RequestError("add_special_tokens is not supported with messages", param="add_special_tokens")
    if body.prompt is not None and body.chat_template_kwargs is not None:
        raise RequestError("chat_template_kwargs needs messages", param="chat_template_kwargs")
    return body


def parse_detokenize(data: bytes) -> DetokenizeBody:
    """A checked body of /detokenize. RequestError names the field."""
    return parse_body(DetokenizeBody, data, {})


# Fields of vLLM that do not exist here, with the values that ask for nothing.
_REFUSED: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {"continue_final_message": (False,), "tools": (), "chat_template": (), "mm_processor_kwargs": ()}
)
