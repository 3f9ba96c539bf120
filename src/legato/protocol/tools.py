"""`tools`, `tool_choice` and `parallel_tool_calls` of a request body."""

import re
from collections.abc import Sequence
from typing import Any

from legato.core.answers import Tool, ToolUse
from legato.core.errors import RequestError
from legato.protocol.cache_control import check_hint
from legato.protocol.parse import unknown_field

__all__ = ["tool_use"]

MAX_TOOLS = 512
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def tool_use(tools: Sequence[Any] | None, choice: Any, parallel: bool, ignored: list[str] | None = None) -> ToolUse:
    """What the fields ask for; None where they are left out. RequestError names what is wrong.

    ignored: as of `parse_body`. What is ignored of a tool is not told to the model either.
    """
    if tools is None:
        if choice not in (None, "none"):
            raise _error("tool_choice needs tools", "tool_choice")
        return ToolUse()
    if not 1 <= len(tools) <= MAX_TOOLS:
        raise _error(f"tools must hold 1 to {MAX_TOOLS} tools; leave it out where there are none", "tools")
    known = [_tool(tool, f"tools[{i}]", ignored) for i, tool in enumerate(tools)]
    names = [tool.name for tool in known]
    for name in names:
        if names.count(name) > 1:
            raise _error(f"tools holds two functions named {name!r}", "tools")
    if choice == "none":
        return ToolUse()
    if choice in (None, "auto", "required"):
        return ToolUse(known, known, forced=choice == "required", one=not parallel)
    named = _named(choice)
    if named not in names:
        raise _error(f"tool_choice names {named[:64]!r}, which is not among the tools", "tool_choice")
    return ToolUse(known, [known[names.index(named)]], forced=True, one=True)


def _named(choice: Any) -> str:
    if isinstance(choice, dict) and choice.get("type") == "function" and set(choice) == {"type", "function"}:
        function = choice["function"]
        if isinstance(function, dict) and set(function) == {"name"} and isinstance(function["name"], str):
            return str(function["name"])
    raise _error(
        'tool_choice must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}',
        "tool_choice",
    )


def _tool(tool: Any, where: str, ignored: list[str] | None) -> Tool:
    if not isinstance(tool, dict):
        raise _error(f"{where} must be an object", where)
    if tool.get("type") != "function":
        raise _error(f'{where}.type must be "function"', f"{where}.type")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise _error(f"{where}.function must be an object", f"{where}.function")
    tool = _known(tool, ("type", "function", "cache_control"), where, ignored)
    check_hint(tool, where)
    where = f"{where}.function"
    function = _known(function, ("name", "description", "parameters", "strict"), where, ignored)
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise _error(f"{where}.name must be 1 to 64 letters, digits, '_', '.' or '-'", f"{where}.name")
    if not isinstance(function.get("description"), str | None):
        raise _error(f"{where}.description must be a string", f"{where}.description")
    if not isinstance(function.get("strict"), bool | None):
        raise _error(f"{where}.strict must be true or false", f"{where}.strict")
    parameters = {} if parameters is None else parameters
    if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
        raise _error(f"{where}.parameters must be a JSON schema of type object", f"{where}.parameters")
    if not isinstance(parameters.get("properties", {}), dict):
        raise _error(f"{where}.parameters.properties must be an object", f"{where}.parameters")
    if not isinstance(parameters.get("required", []), list):
        raise _error(f"{where}.parameters.required must be a list", f"{where}.parameters")
    definition = {**tool, "function": function}
    definition.pop("cache_control", None)
    return Tool(name, parameters, definition, strict=function.get("strict") is True)


def _known(value: dict[str, Any], names: Sequence[str], where: str, ignored: list[str] | None) -> dict[str, Any]:
    """The fields of an object that have these names."""
    for name in value:
        if name not in names:
            unknown_field(name, ignored, where)
    return {name: each for name, each in value.items() if name in names}


def _error(message: str, param: str) -> RequestError:
    return RequestError(message, param=param)
