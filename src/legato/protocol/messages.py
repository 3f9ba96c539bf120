"""Chat messages on the wire: which roles and fields there are. Content is made one text by legato.chat."""

from typing import Any

from legato.core.errors import RequestError
from legato.protocol.cache_control import check_hint
from legato.protocol.parse import unknown_field

__all__ = ["check_messages"]

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_SENT_BACK = ("refusal", "annotations", "audio", "function_call")
_PART = ("type", "text", "cache_control")
_REASONING = ("reasoning", "reasoning_content")
_OF_SOME_ROLES = ("name", "tool_calls", "tool_call_id", *_REASONING)


def check_messages(messages: list[Any], ignored: list[str] | None = None) -> list[dict[str, Any]]:
    """Messages with role, content, and what else they have; `developer` becomes `system`.

    Assistants may have calls and reasoning, the latter under either name; results have the id of their call. Other
    fields that replies carry may be sent back as long as they are null or empty. `cache_control` is checked, and read
    elsewhere (legato.protocol.cache_control). RequestError names message and field. ignored: as of `parse_body`.
    """
    if not messages:
        raise RequestError("messages is empty", param="messages", code="empty_prompt")
    return [_check(message, f"messages[{i}]", ignored) for i, message in enumerate(messages)]


def _check(message: Any, where: str, ignored: list[str] | None) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise _error(where, "must be an object")
    role = message.get("role")
    if not isinstance(role, str):
        raise _error(f"{where}.role", "is required and must be a string")
    if role not in _ROLES:
        became = "; results of functions have the role tool" if role == "function" else ""
        raise _error(f"{where}.role", f"must be system, developer, user, assistant or tool{became}")
    checked = {"role": _ROLES[role], "content": message.get("content")}
    _check_parts(message, where, ignored)
    for name, value in message.items():
        if name in ("role", "content", "cache_control") or value is None:
            continue
        if name == "name" and isinstance(value, str):
            checked["name"] = value
        elif name == "tool_calls" and role == "assistant":
            checked["tool_calls"] = _calls(value, f"{where}.tool_calls", ignored)
        elif name == "tool_call_id" and role == "tool" and isinstance(value, str) and value:
            checked["tool_call_id"] = value
        elif name in _REASONING and role == "assistant" and isinstance(value, str):
            checked |= dict.fromkeys(_REASONING, value)
        elif name in _SENT_BACK:
            if value:
                raise _error(f"{where}.{name}", "is not supported")
        elif name in _OF_SOME_ROLES:
            raise _error(f"{where}.{name}", "is of the wrong type, or not for this role")
        else:
            unknown_field(name, ignored, where)
    if checked["content"] is None and not checked.get("tool_calls"):
        raise _error(f"{where}.content", "is required")
    if role == "tool" and "tool_call_id" not in checked:
        raise _error(f"{where}.tool_call_id", "is required")
    return checked


def _check_parts(message: dict[str, Any], where: str, ignored: list[str] | None) -> None:
    """Hints, and the fields of text parts. Parts of other types are refused where content is made one text."""
    check_hint(message, where)
    content = message.get("content")
    for i, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, dict):
            check_hint(part, f"{where}.content[{i}]")
        if isinstance(part, dict) and part.get("type") == "text":
            for name, value in part.items():
                if name not in _PART and value is not None:
                    unknown_field(name, ignored, f"{where}.content[{i}]")


def _calls(calls: Any, where: str, ignored: list[str] | None) -> list[dict[str, Any]]:
    """Calls as they were answered: an id, a name, and arguments as JSON text."""
    if not isinstance(calls, list):
        raise _error(where, "must be a list")
    return [_call(call, f"{where}[{i}]", ignored) for i, call in enumerate(calls)]


def _call(call: Any, where: str, ignored: list[str] | None) -> dict[str, Any]:
    if not isinstance(call, dict) or call.get("type", "function") != "function":
        raise _error(where, "must be an object of type function")
    function = call.get("function")
    if not isinstance(function, dict):
        raise _error(f"{where}.function", "must be an object")
    for name, value in (("id", call.get("id")), ("function.name", function.get("name"))):
        if not isinstance(value, str) or not value:
            raise _error(f"{where}.{name}", "is required and must be a string")
    if not isinstance(function.get("arguments"), str):
        raise _error(f"{where}.function.arguments", "is required and must be a string of JSON")
    for name in call:
        if name not in ("id", "type", "function", "index"):
            unknown_field(name, ignored, where)
    return {"id": call["id"], "type": "function", "function": {k: function[k] for k in ("name", "arguments")}}


def _error(where: str, what: str) -> RequestError:
    return RequestError(f"{where} {what}", param=where)
