"""Mistral: [TOOL_CALLS] and an array of JSON objects, or, in newer models, NAME[ARGS]{...} behind each marker."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from legato.chat.brackets import JSON, Malformed, first_bracket
from legato.chat.calls import Call, ToolFormat
from legato.chat.json_calls import OBJECT_HEAD, calls_of, compact, object_grammar
from legato.core.answers import Tool

__all__ = ["MISTRAL", "MISTRAL_NAMED"]

_OPENER = "[TOOL_CALLS]"
_NAMED = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)")
_IN_NAMED = re.compile(r"[\w.\-\[\]\s]*")
_LONGEST_HEAD = 256  # characters


def _begin(text: str) -> int | None:
    """An array begins at once; else the object comes behind the name."""
    stripped = text.lstrip()
    if not stripped or stripped[0] in "[{":
        return first_bracket(text, "[{")
    head = _IN_NAMED.match(text[:_LONGEST_HEAD])
    assert head is not None
    if head.end() == len(text):
        return None
    if text[head.end()] != "{" or _NAMED.match(text) is None:
        raise Malformed(head.end())
    return head.end()


def _parse(text: str) -> list[Call]:
    named = _NAMED.match(text)
    if named is None:
        return calls_of(text)
    return calls_of(f'{{"name": "{named[1]}", "arguments": {text[named.end() :]}}}')


def _head(name: str) -> str:
    return f'{{"name": "{name}", "arguments": '


def _write(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{_OPENER}[{_head(name)}{compact(arguments)}}}]"


def _grammar(tools: Sequence[Tool], one: bool, control: Mapping[str, int]) -> str:
    return object_grammar(
        tools, one, control, opener=_OPENER, before="[", head=_head, tail="}", between=", ", after="]"
    )


MISTRAL = ToolFormat(
    name="mistral",
    signs=(_OPENER,),
    openers=(_OPENER,),
    closers=(),
    bare="",
    notation=JSON,
    begin=_begin,
    parse=_parse,
    grammar=_grammar,
    write=_write,
    inner=("[ARGS]", "[CALL_ID]"),
    forced_head=OBJECT_HEAD,
    forced_tail="}]",
    id_length=9,  # the templates of these models refuse any other
)


def _named_head(name: str) -> str:
    return f"{name}[ARGS]"


def _write_named(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{_OPENER}{_named_head(name)}{compact(arguments)}"


def _named_grammar(tools: Sequence[Tool], one: bool, control: Mapping[str, int]) -> str:
    return object_grammar(tools, one, control, opener=_OPENER, head=_named_head, tail="", between=_OPENER)


# What newer models are to write: the templates of these have the sign.
MISTRAL_NAMED = replace(
    MISTRAL,
    signs=("[ARGS]",),
    grammar=_named_grammar,
    write=_write_named,
    forced_head=re.compile(r"([\w.-]+)\[ARGS\]"),
    forced_tail="",
)
