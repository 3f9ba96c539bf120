"""Chat messages on the wire: which roles and fields there are. Content is made one text by legato.chat."""

from typing import Any

from legato.core.errors import RequestError
from legato.protocol.cache_control import check_hint

__all__ = ["check_messages"]

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_SENT_BACK = ("refusal", "annotations", "audio", "function_call", "tool_calls", "reasoning")


def check_messages(messages: list[Any]) -> list[dict[str, Any]]:
    """Messages with role, content, and name where one is given; `developer` becomes `system`.

    Fields that replies carry may be sent back as long as they are null or empty. `cache_control` is checked, and read
    elsewhere (legato.protocol.cache_control). RequestError names message and field.
    """
    if not messages:
        raise RequestError("messages is empty", param="messages", code="empty_prompt")
    return [_check(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _check(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise _error(where, "must be an object")
    role = message.get("role")
    if not isinstance(role, str):
        raise _error(f"{where}.role", "is required and must be a string")
    if role not in _ROLES:
        known = role in ("tool", "function")
        raise _error(f"{where}.role", "is not supported" if known else "must be system, developer, user or assistant")
    if message.get("content") is None:
        raise _error(f"{where}.content", "is required")
    checked = {"role": _ROLES[role], "content": message["content"]}
    _check_hints(message, where)
    for name, value in message.items():
        if name == "name" and isinstance(value, str):
            checked["name"] = value
        elif name in _SENT_BACK and value:
            raise _error(f"{where}.{name}", "is not supported")
        elif name not in ("role", "content", "cache_control", *_SENT_BACK) and not (name == "name" and value is None):
            raise _error(f"{where}.{name[:64]}", "is unknown or of the wrong type")
    return checked


def _check_hints(message: dict[str, Any], where: str) -> None:
    check_hint(message, where)
    content = message["content"]
    for i, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, dict):
            check_hint(part, f"{where}.content[{i}]")


def _error(where: str, what: str) -> RequestError:
    return RequestError(f"{where} {what}", param=where)
