"""Bodies of /tokenize and /detokenize."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from legato.core.errors import RequestError
from legato.protocol.chat import TemplateFields
from legato.protocol.messages import check_messages
from legato.protocol.parse import Body, parse_body

__all__ = ["DetokenizeBody", "TokenizeBody", "parse_detokenize", "parse_tokenize"]


class TokenizeBody(TemplateFields):
    """POST /tokenize: a prompt as /v1/completions takes it, or messages as /v1/chat/completions does."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False

    def talk(self, ignored: list[str] | None = None) -> list[dict[str, Any]]:
        """The messages, their roles and fields checked. ignored: as of `parse_body`."""
        return check_messages(self.messages or [], ignored)


class DetokenizeBody(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]


def parse_tokenize(data: bytes, ignored: list[str] | None = None) -> TokenizeBody:
    """A checked body of /tokenize. RequestError names the field. ignored: see parse_body."""
    body = parse_body(TokenizeBody, data, _REFUSED, ignored)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give prompt or messages, one of them", param="prompt")
    for name in TemplateFields.model_fields:
        if body.prompt is not None and getattr(body, name) not in (None, False):
            raise RequestError(f"{name} needs messages", param=name)
    return body


def parse_detokenize(data: bytes, ignored: list[str] | None = None) -> DetokenizeBody:
    """A checked body of /detokenize. RequestError names the field. ignored: see parse_body."""
    return parse_body(DetokenizeBody, data, {}, ignored)


# Fields of vLLM that do not exist here, with the values that ask for nothing.
_REFUSED: Mapping[str, tuple[object, ...]] = MappingProxyType({"mm_processor_kwargs": ()})
