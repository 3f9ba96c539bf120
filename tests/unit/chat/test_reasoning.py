"""Reasoning in front of an answer: cut off exactly, in text and in tokens."""

from collections.abc import Iterable

import pytest

from legato.chat.reasoning import ReasoningMarks, ReasoningSplit
from legato.core.answers import AnswerGate, Reasoning
from legato.core.errors import ConfigError
from legato.tokenizer.assets import assets_from_gguf
from legato.tokenizer.tokenizer import Tokenizer
from support.byte_level import TOKENIZER as WITHOUT_MARKS
from support.tiny_tokenizers import byte_level_metadata


def thinking_tokenizer(kind: int = 4) -> Tokenizer:
    """kind: of the two marks, 3 control or 4 user-defined."""
    metadata = byte_level_metadata()
    metadata["tokenizer.ggml.tokens"] += ["<think>", "</think>"]
    metadata["tokenizer.ggml.token_type"] += [kind, kind]
    return Tokenizer(assets_from_gguf(metadata))


TOKENIZER = thinking_tokenizer()


def split(parts: Iterable[str], opened: bool) -> tuple[str, str]:
    it = ReasoningSplit(opened=opened)
    both = [it.push(part) for part in parts] + [it.finish()]
    return "".join(r for r, _ in both), "".join(c for _, c in both)


CASES = [
    ("<think>\nhm, so\n</think>\n\nYes.\n", False, "hm, so", "Yes.\n"),
    ("\n<think>hm</think>Yes", False, "hm", "Yes"),
    ("hm, <b>\n</think>\n\nYes", True, "hm, <b>", "Yes"),
    ("<think>\nhm</think>Yes", True, "hm", "Yes"),
    ("Yes <think>no</think>", False, "", "Yes <think>no</think>"),
    (" \nYes", False, "", " \nYes"),
    ("<think>hm", False, "hm", ""),
    ("<think>hm </th", False, "hm </th", ""),
    ("<thi", False, "", "<thi"),
    ("  ", False, "", "  "),
    ("  hm ", True, "hm", ""),
    ("<think>\n\n</think>\n\nYes", False, "", "Yes"),
    ("<think>a</think>b</think>c", False, "a", "b</think>c"),
    ("", False, "", ""),
]


@pytest.mark.parametrize(("text", "opened", "reasoning", "content"), CASES)
def test_reasoning_is_cut_off_however_the_text_arrives(text: str, opened: bool, reasoning: str, content: str) -> None:
    for parts in [[text], list(text), *([text[:i], text[i:]] for i in range(len(text)))]:
        assert split(parts, opened) == (reasoning, content), parts


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, parse_special=True)


def test_the_prompt_says_what_follows() -> None:
    marks = ReasoningMarks(TOKENIZER, always=False)
    head = "<|im_start|>user\n<think> is a tag</think><|im_end|>\n<|im_start|>assistant\n"
    undecided = Reasoning(marks.start_id, marks.end_id, opened=False)
    assert marks.after(ids(head)) == undecided
    assert marks.after(ids(head + "<think>\n")) == Reasoning(marks.start_id, marks.end_id, opened=True)
    assert marks.after(ids(head + "<think>\n\n</think>\n\n")) is None
    assert marks.after(ids("")) == undecided
    assert ReasoningMarks(TOKENIZER, always=True).after(ids(head)) == Reasoning(
        marks.start_id, marks.end_id, opened=True
    )


def test_marks_must_be_tokens() -> None:
    with pytest.raises(ConfigError, match="reasoning_parser: <think> is not a token of this model"):
        ReasoningMarks(WITHOUT_MARKS, always=False)


@pytest.mark.parametrize(("tokens", "opened", "reasoning", "answer"), [
    ([1, 7, 7, 2, 8, 2, 8], False, 4, 3),
    ([7, 7, 2, 8], True, 3, 1),
    ([1, 7, 2, 8], True, 3, 1),
    ([8, 1, 8, 2], False, 0, 4),
    ([1, 7, 7], False, 3, 0),
    ([], True, 0, 0),
])  # fmt: skip
def test_reasoning_tokens_are_counted_exactly(tokens: list[int], opened: bool, reasoning: int, answer: int) -> None:
    gate = AnswerGate(Reasoning(start_id=1, end_id=2, opened=opened))
    assert sum(gate.push(token) for token in tokens) == answer
    assert gate.num_reasoning == reasoning


def test_without_reasoning_all_is_answer() -> None:
    gate = AnswerGate(None)
    assert gate.push(2)
    assert gate.num_reasoning == 0
