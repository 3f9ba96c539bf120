"""What the formats share that write a call as {"name": ..., "arguments": {...}}."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from legato.chat.brackets import JSON, Balanced
from legato.chat.calls import Call, CallArguments, CallStart, Piece
from legato.core.answers import Tool

__all__ = [
    *("MAX_CALLS", "OBJECT_HEAD", "ForcedCalls", "arguments_of", "calls_of", "compact"),
    *("EMPTY", "lark_text", "on_one_line", "object_grammar", "parameters_of"),
]

MAX_CALLS = 8  # in one forced answer, so that a weak model comes to an end

EMPTY = '""'  # in Lark

_ARGUMENTS = ("arguments", "parameters")
OBJECT_HEAD = re.compile(r'"name": "([^"]+)", "(?:arguments|parameters)": ')


def calls_of(text: str) -> list[Call]:
    """The calls of a JSON object, or of an array of them. ValueError where it is something else."""
    value = _load(text)
    return [_call(each) for each in (value if isinstance(value, list) else [value])]


def arguments_of(value: Any) -> str:
    """Arguments as JSON text. ValueError unless they are an object that JSON can hold."""
    if isinstance(value, str):  # some models write the object as a text
        value = _load(value)
    if not isinstance(value, dict):
        raise ValueError("arguments are no object")
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode()  # a lone surrogate is no text; UnicodeEncodeError is a ValueError
    return text


def compact(value: Any) -> str:
    """JSON on one line, as models are shown it."""
    return json.dumps(value, ensure_ascii=False)


def _call(value: Any) -> Call:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("a call has no name")
    found = [key for key in _ARGUMENTS if key in value]
    return Call(value["name"], arguments_of(value[found[0]] if found else {}))


def _load(text: str) -> Any:
    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


class ForcedCalls:
    """Calls in text that a grammar holds to the format. Arguments are handed on as they are written."""

    def __init__(self, head: re.Pattern[str], tail: str) -> None:
        """head, tail: what the grammar writes before (with the name as a group) and behind the arguments of a call."""
        self._head = head
        self._tail = tail
        self._buffer = ""
        self._arguments: Balanced | None = None

    @property
    def in_call(self) -> bool:
        return self._arguments is not None

    def push(self, text: str) -> list[Piece]:
        """Takes more text; what is certain now."""
        self._buffer += text
        pieces: list[Piece] = []
        while True:
            if self._arguments is None:
                head = self._head.search(self._buffer)
                if head is None:
                    return pieces
                pieces.append(CallStart(head[1]))
                self._buffer = self._buffer[head.end() :]
                self._arguments = Balanced(JSON)
            end = self._arguments.push(self._buffer, 0)
            if self._buffer:
                pieces.append(CallArguments(self._buffer[:end]))
            if end is None:
                self._buffer = ""
                return pieces
            self._buffer = self._buffer[end:]
            self._arguments = None

    def finish(self) -> list[Piece]:
        """The text ends here. The beginning of a call that was cut before its arguments is content."""
        rest, self._buffer = self._buffer, ""
        rest = "" if self._tail.startswith(rest) else rest.removeprefix(self._tail).strip()
        return [rest] if rest else []


def object_grammar(
    tools: Sequence[Tool],
    one: bool,
    control: Mapping[str, int],
    *,
    opener: str = "",
    before: str = "",
    head: Callable[[str], str],
    tail: str,
    between: str,
    after: str = "",
) -> str:
    """Lark grammar of calls with JSON arguments: opener, before, head(name) arguments tail (between ...)*, after."""
    names = [f"call{i}" for i in range(len(tools))]
    more = "" if one else f" ({lark_text(between, control)} call){{0,{MAX_CALLS - 1}}}"
    lines = [
        "start: open calls",
        f"open: {lark_text(opener, control) or EMPTY}",
        f"calls: {lark_text(before, control)} call{more} {lark_text(after, control)}",
        f"call: {' | '.join(names)}",
    ]
    for name, tool in zip(names, tools, strict=True):
        schema = json.dumps(parameters_of(tool))
        lines += [
            f"{name}: {lark_text(head(tool.name), control)} {name}_arguments {lark_text(tail, control)}",
            f"{name}_arguments: %json {schema}",
        ]
    return "\n".join(lines) + "\n"


def parameters_of(tool: Tool) -> dict[str, Any]:
    """The schema that calls are held to: no arguments but those it names, unless it says otherwise; on one line."""
    return on_one_line({"type": "object", "properties": {}, "additionalProperties": False, **tool.parameters})


def on_one_line(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema whose values are written as Python's json does: white space cannot go on for ever."""
    return {**schema, "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}


def lark_text(text: str, control: Mapping[str, int]) -> str:
    """A text in a Lark rule; control tokens (text to id) in it are those tokens. Nothing for the empty text."""
    found = "|".join(map(re.escape, sorted(control, key=len, reverse=True)))
    parts = re.split(f"({found})", text) if found else [text]
    return " ".join(f"<[{control[part]}]>" if part in control else json.dumps(part) for part in parts if part)
