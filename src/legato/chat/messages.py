"""Chat messages as templates expect them: every content one string."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from legato.core.errors import RequestError

__all__ = ["extended", "extended_tools", "normalized"]

_PART_SEPARATOR = "\n"  # between the text parts of one message
_RARE = "\u241e"  # a visible character that hardly any text holds


def normalized(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages with every content as one string.

    A list of text parts is joined by a newline; a content that is null or missing becomes "". Arguments of tool
    calls, JSON text in the API, become objects, as templates expect them. Raises RequestError naming the field.
    """
    if not messages:
        raise RequestError("messages is empty", param="messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def extended(messages: Sequence[Mapping[str, Any]], index: int, part: int | None) -> list[Mapping[str, Any]]:
    """Messages with one rare character more at the end of one's content, or of one of its text parts.

    The prompts of both have in common what comes before that place, wherever a template puts it.
    """
    message = messages[index]
    content = message.get("content")
    if isinstance(content, list) and content:
        at = len(content) - 1 if part is None else part
        longer: Any = [*content[:at], {**content[at], "text": content[at]["text"] + _RARE}, *content[at + 1 :]]
    else:
        longer = (content or "") + _RARE
    return [*messages[:index], {**message, "content": longer}, *messages[index + 1 :]]


def extended_tools(tools: Sequence[Mapping[str, Any]], index: int) -> list[Mapping[str, Any]]:
    """Tools with one more key, a rare character, at the end of one's function."""
    longer = {**tools[index], "function": {**tools[index]["function"], _RARE: ""}}
    return [*tools[:index], longer, *tools[index + 1 :]]


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f"{where} is not an object with a 'role'", param=where)
    result = {**message, "content": _content(message.get("content"), f"{where}.content")}
    calls = message.get("tool_calls")
    if calls:
        result["tool_calls"] = [_tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]
    return result


def _content(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} is neither a text nor a list of parts", param=where)
    return _PART_SEPARATOR.join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if not isinstance(part, Mapping):
        raise RequestError(f"{where} must be an object", param=where)
    if (kind := part.get("type")) != "text":
        shown = repr(kind[:64]) if isinstance(kind, str) else "no string"
        raise RequestError(f"{where}.type: {shown} is not supported, only 'text' is", param=f"{where}.type")
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{where}.text is not a string", param=f"{where}.text")
    return text


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise RequestError(f"{where}.function is not an object", param=f"{where}.function")
    arguments, field = function.get("arguments"), f"{where}.function.arguments"
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{field} is not JSON: {error}", param=field) from error
    if not isinstance(arguments, Mapping):
        raise RequestError(f"{field} is not a JSON object", param=field)
    return {**call, "function": {**function, "arguments": arguments}}
