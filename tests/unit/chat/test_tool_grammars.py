"""Grammars of forced calls: they take what the format writes, and nothing else."""

import pytest
from llguidance import LLMatcher, LLTokenizer

from legato.chat.calls import FoundCalls, ToolFormat
from legato.chat.dialect import FORMATS
from legato.chat.free import free_grammar
from legato.chat.mistral import MISTRAL_NAMED
from legato.core.answers import Tool
from legato.core.errors import RequestError

BYTES = LLTokenizer("byte")
ALL = [*FORMATS.values(), MISTRAL_NAMED]
WEATHER = Tool(
    "get_weather",
    {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer"}, "unit": {"enum": ["C", "F"]}},
        "required": ["city"],
        "$defs": {"city": {"type": "string", "maxLength": 20}},
    },
    {},
)
NOW = Tool("now", {}, {})
ARGUMENTS = [{"city": "Bonn"}, {"city": "Bonn", "days": 3}, {"city": "Bonn", "unit": "C"}]
BAD = [{}, {"city": 3}, {"city": "Bonn", "days": "3"}, {"city": "Bonn", "other": 1}, {"city": "B" * 21}]


def accepts(grammar: str, text: str) -> bool:
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_lark(grammar))
    assert not matcher.is_error(), matcher.get_error()
    data = list(text.encode())
    return bool(matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting())


@pytest.mark.parametrize("format", ALL, ids=lambda it: f"{it.name} {it.signs[0]}")
def test_a_forced_call_fits_its_schema(format: ToolFormat) -> None:
    grammar = format.grammar([WEATHER, NOW], True, {})
    for arguments in ARGUMENTS:
        written = format.write("get_weather", arguments)
        assert accepts(grammar, written), written
        assert FoundCalls(format, ["get_weather"]).push(written)
    assert accepts(grammar, format.write("now", {}))
    for arguments in BAD:
        assert not accepts(grammar, format.write("get_weather", arguments)), arguments
    assert not accepts(grammar, format.write("then", {}))
    assert not accepts(grammar, "Hello")
    assert not accepts(grammar, "")


@pytest.mark.parametrize(
    ("name", "between"),
    [("hermes", "\n"), ("llama3_json", "; "), ("mistral", "}, {"), ("pythonic", ", ")],
)
def test_parallel_calls_only_where_they_are_allowed(name: str, between: str) -> None:
    call = FORMATS[name].write("now", {})
    two = call + between + call
    if name == "mistral":
        two = call[:-2] + between + call.removeprefix("[TOOL_CALLS][{")
    elif name == "pythonic":
        two = call[:-1] + between + call[1:]
    assert accepts(FORMATS[name].grammar([NOW], False, {}), two)
    assert not accepts(FORMATS[name].grammar([NOW], True, {}), two)


@pytest.mark.parametrize("format", ALL, ids=lambda it: f"{it.name} {it.signs[0]}")
def test_a_free_answer_is_text_or_calls(format: ToolFormat) -> None:
    grammar = free_grammar(format, format.grammar([NOW], True, {}), {})
    call = format.write("now", {})
    assert accepts(grammar, "")
    assert accepts(grammar, "Well, 1 < 2.\nYes.")
    assert accepts(grammar, call)
    assert not accepts(grammar, call.replace("now", "then"))
    if not format.bare:
        assert accepts(grammar, "Let me see.\n" + call)
        assert not accepts(grammar, f"{call} {call}")


def test_control_tokens_are_themselves_in_a_grammar() -> None:
    grammar = FORMATS["mistral"].grammar([NOW], True, {"[TOOL_CALLS]": 9, "[INST]": 3})
    assert grammar.startswith("start: open calls\nopen: <[9]>\n")


def test_pythonic_calls_need_python_names() -> None:
    tool = Tool("f", {"properties": {"not-a-name": {}}}, {})
    with pytest.raises(RequestError, match="f has a parameter that is no Python name"):
        FORMATS["pythonic"].grammar([tool], True, {})
