"""Pythonic calls (Llama 4, LFM2, ToolACE): the answer is a list, [name(argument=value), ...], perhaps in markers."""

import ast
import json
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from legato.chat.brackets import PYTHON, first_bracket
from legato.chat.calls import Call, ToolFormat
from legato.chat.json_calls import EMPTY, MAX_CALLS, arguments_of, compact, lark_text, parameters_of
from legato.core.answers import Tool
from legato.core.errors import RequestError

__all__ = ["PYTHONIC"]

_JSON_NAMES = {"true": True, "false": False, "null": None}


def _parse(text: str) -> list[Call]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes in what the model wrote
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, MemoryError) as error:
            raise ValueError("not Python") from error
    if not isinstance(tree, ast.List) or not tree.elts:
        raise ValueError("not a list of calls")
    return [_call(node) for node in tree.elts]


def _call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or node.args or not isinstance(node.func, ast.Name | ast.Attribute):
        raise ValueError("not a call with named arguments")
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("arguments are spread")
        arguments[keyword.arg] = _value(keyword.value)
    return Call(ast.unparse(node.func), arguments_of(arguments))


def _value(node: ast.expr) -> Any:
    """A literal: numbers, texts, lists, dicts, and the constants of Python and of JSON."""
    if isinstance(node, ast.Name) and node.id in _JSON_NAMES:
        return _JSON_NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {_key(key): _value(value) for key, value in zip(node.keys, node.values, strict=True)}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand)
        if type(value) in (int, float):
            return -value
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | None):
        return node.value
    raise ValueError("not a literal")


def _key(node: ast.expr | None) -> str:
    key = _value(node) if node is not None else None
    if not isinstance(key, str):
        raise ValueError("a key is no text")
    return key


def _write(name: str, arguments: Mapping[str, Any]) -> str:
    return f"[{name}({', '.join(f'{key}={compact(value)}' for key, value in arguments.items())})]"


def _grammar(tools: Sequence[Tool], one: bool, control: Mapping[str, int]) -> str:
    """Values are JSON, which is read as well; arguments come in the order of the schema."""
    names = [f"call{i}" for i in range(len(tools))]
    more = "" if one else f' (", " call){{0,{MAX_CALLS - 1}}}'
    lines = ["start: open calls", f"open: {EMPTY}", f'calls: "[" call{more} "]"', f"call: {' | '.join(names)}"]
    for name, tool in zip(names, tools, strict=True):
        lines.append(f'{name}: {lark_text(tool.name + "(", control)} {name}_first0 ")"')
        lines += _arguments(name, tool)
    return "\n".join(lines) + "\n"


def _arguments(rule: str, tool: Tool) -> list[str]:
    """Rules for the arguments from the i-th on: `first` where none came before, `rest` behind a comma."""
    schema = parameters_of(tool)
    shared = {key: schema[key] for key in ("$defs", "definitions", "x-guidance") if key in schema}
    required = schema.get("required", ())
    properties = schema["properties"]
    if not all(name.isidentifier() for name in properties):
        raise RequestError(
            f"tools: {tool.name} has a parameter that is no Python name, as this model's calls need", param="tools"
        )
    lines = []
    for i, (name, inner) in enumerate(properties.items()):
        value = f"{rule}_value{i}"
        skip_first, skip_rest = (
            (f" | {rule}_first{i + 1}", f" | {rule}_rest{i + 1}") if name not in required else ("", "")
        )
        lines += [
            f"{rule}_first{i}: {json.dumps(name + '=')} {value} {rule}_rest{i + 1}{skip_first}",
            f"{rule}_rest{i}: {json.dumps(', ' + name + '=')} {value} {rule}_rest{i + 1}{skip_rest}",
            f"{value}: %json {json.dumps({**(inner if isinstance(inner, dict) else {}), **shared})}",
        ]
    end = len(properties)
    return [*lines, f"{rule}_first{end}: {EMPTY}", f"{rule}_rest{end}: {EMPTY}"]


PYTHONIC = ToolFormat(
    name="pythonic",
    signs=("<|python_start|>", "<|tool_call_start|>", "func_name1("),
    openers=("<|python_start|>", "<|tool_call_start|>"),
    closers=("<|python_end|>", "<|tool_call_end|>"),
    bare="[",
    notation=PYTHON,
    begin=partial(first_bracket, brackets="["),
    parse=_parse,
    grammar=_grammar,
    write=_write,
)
