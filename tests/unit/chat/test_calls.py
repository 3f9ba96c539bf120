"""Tool calls in text: what each format finds, however the text is cut, and what stays content."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.chat.calls import CallArguments, CallReader, CallStart, FoundCalls, Piece, ToolFormat
from legato.chat.dialect import FORMATS
from legato.chat.hermes import HERMES
from legato.chat.json_calls import OBJECT_HEAD, ForcedCalls
from legato.chat.mistral import MISTRAL_NAMED
from support.golden import FOLDER

NAMES = ("get_weather", "add")
GOLDEN = json.loads((FOLDER / "tool_calls.json").read_text())
Found = tuple[str, list[dict[str, Any]]]


def read(reader: CallReader, parts: Iterable[str]) -> Found:
    """Content and calls, joined from the pieces."""
    pieces: list[Piece] = []
    for part in parts:
        pieces += reader.push(part)
    pieces += reader.finish()
    content = ""
    calls: list[dict[str, str]] = []
    for piece in pieces:
        if isinstance(piece, CallStart):
            calls.append({"name": piece.name, "arguments": ""})
        elif isinstance(piece, CallArguments):
            calls[-1]["arguments"] += piece.text
        else:
            content += piece
    return content, [{**call, "arguments": json.loads(call["arguments"])} for call in calls]


def cuts(text: str) -> Iterator[list[str]]:
    """In one piece, character by character, and cut once at every position."""
    yield [text]
    yield list(text)
    yield from ([text[:i], text[i:]] for i in range(1, len(text)))


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['format']} {case['text'][:24]}")
def test_a23_calls_are_found_however_the_text_is_cut(case: dict[str, Any]) -> None:
    for parts in cuts(case["text"]):
        assert read(FoundCalls(FORMATS[case["format"]], NAMES), parts) == (case["content"], case["calls"]), parts


def test_deep_nesting_is_no_call() -> None:
    text = "<tool_call>" + "[" * 3000 + "]" * 3000
    assert read(FoundCalls(FORMATS["hermes"], NAMES), [text]) == (text, [])


FRAGMENTS = [
    "<tool_call>", "</tool_call>", '{"name": "add"', ', "arguments": {}}', "{", "}", "[", "]", '"',
    "\\", "\n", " ", "x", ";",
    "[TOOL_CALLS]", "[ARGS]", "add", "add(", ")", "<|python_tag|>", "<|python_start|>", "a=1", "'", "é", "<",
]  # fmt: skip


@given(st.sampled_from(sorted(FORMATS)), st.lists(st.sampled_from(FRAGMENTS), max_size=12), st.data())
def test_any_cut_of_any_text_gives_the_same(format: str, fragments: list[str], data: st.DataObject) -> None:
    text = "".join(fragments)
    places = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    parts = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    whole = read(FoundCalls(FORMATS[format], NAMES), [text])
    assert read(FoundCalls(FORMATS[format], NAMES), parts) == whole
    assert read(FoundCalls(FORMATS[format], NAMES), list(text)) == whole
    if not whole[1]:
        assert whole[0] == text


def test_content_is_not_held_back_for_long() -> None:
    reader = FoundCalls(FORMATS["hermes"], NAMES)
    assert reader.push("Hello, world") == ["Hello, world"]
    assert reader.push(" <") == []
    assert reader.push("b>") == [" <b>"]


@pytest.mark.parametrize("format", [*FORMATS.values(), MISTRAL_NAMED], ids=lambda it: f"{it.name} {it.signs[0]}")
def test_forced_calls_hand_their_arguments_on_as_they_are_written(format: ToolFormat) -> None:
    arguments = {"a": "}]{", "b": 'x"é'}
    written = format.write("add", arguments)
    assert read(FoundCalls(format, NAMES), [written]) == ("", [{"name": "add", "arguments": arguments}])
    if format.forced_head is None:
        return
    for parts in cuts(written):
        assert read(ForcedCalls(format.forced_head, format.forced_tail), parts) == (
            "",
            [{"name": "add", "arguments": arguments}],
        )
    reader = ForcedCalls(format.forced_head, format.forced_tail)
    assert reader.push(written[: written.index("}]{")])[-1] == CallArguments('{"a": "')
    assert reader.push("}]") == [CallArguments("}]")]


def test_a_forced_call_that_is_cut_short_is_not_lost() -> None:
    text = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>\n{"na'
    reader = ForcedCalls(OBJECT_HEAD, HERMES.forced_tail)
    assert reader.push(text) == [CallStart("add"), CallArguments('{"a": 1}')]
    assert reader.finish() == ['<tool_call>\n{"na']
    reader = ForcedCalls(OBJECT_HEAD, HERMES.forced_tail)
    assert reader.push(text[:9]) == []
    assert reader.finish() == [text[:9]]
