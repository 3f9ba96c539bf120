"""Hermes and Qwen: each call is a JSON object between <tool_call> and </tool_call>."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from legato.chat.brackets import JSON, first_bracket
from legato.chat.calls import ToolFormat
from legato.chat.json_calls import OBJECT_HEAD, calls_of, compact, object_grammar
from legato.core.answers import Tool

__all__ = ["HERMES"]

_OPENER = "<tool_call>"
_TAIL = "}\n</tool_call>"


def _head(name: str) -> str:
    return f'\n{{"name": "{name}", "arguments": '


def _write(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{_OPENER}{_head(name)}{compact(arguments)}{_TAIL}"


def _grammar(tools: Sequence[Tool], one: bool, control: Mapping[str, int]) -> str:
    return object_grammar(tools, one, control, opener=_OPENER, head=_head, tail=_TAIL, between=f"\n{_OPENER}")


HERMES = ToolFormat(
    name="hermes",
    signs=(_OPENER,),
    openers=(_OPENER,),
    closers=("</tool_call>",),
    bare="",
    notation=JSON,
    begin=partial(first_bracket, brackets="{["),
    parse=calls_of,
    grammar=_grammar,
    write=_write,
    forced_head=OBJECT_HEAD,
    forced_tail=_TAIL,
)
