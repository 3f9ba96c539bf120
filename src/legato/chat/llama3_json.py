"""Llama 3: the answer is one JSON object with "parameters", or several with ";" between, perhaps behind a marker."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from legato.chat.brackets import JSON, first_bracket
from legato.chat.calls import ToolFormat
from legato.chat.json_calls import OBJECT_HEAD, calls_of, compact, object_grammar
from legato.core.answers import Tool

__all__ = ["LLAMA3_JSON"]


def _head(name: str) -> str:
    return f'{{"name": "{name}", "parameters": '


def _write(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{_head(name)}{compact(arguments)}}}"


def _grammar(tools: Sequence[Tool], one: bool, control: Mapping[str, int]) -> str:
    return object_grammar(tools, one, control, head=_head, tail="}", between="; ")


LLAMA3_JSON = ToolFormat(
    name="llama3_json",
    signs=("<|python_tag|>", '{"name": function name, "parameters":'),
    openers=("<|python_tag|>",),
    closers=(";",),
    bare="{",
    notation=JSON,
    begin=partial(first_bracket, brackets="{"),
    parse=calls_of,
    grammar=_grammar,
    write=_write,
    forced_head=OBJECT_HEAD,
    forced_tail="}",
)
