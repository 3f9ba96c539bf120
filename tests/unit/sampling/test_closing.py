"""Answers in JSON are brought to their end before max_tokens."""

import json

import pytest

from legato.core.grammar import Grammar
from legato.sampling.closing import Closing
from support.byte_level import EOS, TOKENIZER, byte_tokens
from support.conformance import walk
from support.grammars import allowed, compiled, make_compiler, schema

TOKENS = [b"", b'"', b'"}', b"]", b'a"', b"{", b",", b"[1", b"null", b"x"]


def mask_of(*tokens: int) -> bytes:
    return sum(1 << token for token in tokens).to_bytes(2, "little")


@pytest.mark.parametrize(
    ("mask", "left"),
    [
        ((0, 1, 5, 8), (0,)),  # the end token, which is 0 here
        ((1, 2, 3, 4, 5, 8), (1, 2)),
        ((3, 4, 5, 8), (3,)),
        ((4, 5, 6, 7, 8), (4, 8)),
        ((5, 7), (5, 7)),
    ],
)
def test_what_is_left_of_a_mask(mask: tuple[int, ...], left: tuple[int, ...]) -> None:
    assert Closing(TOKENS, 64).narrow(mask_of(*mask), 1) == mask_of(*left)


def test_closing_takes_a_quarter_at_most() -> None:
    assert [Closing(TOKENS, 64).begins_at(n) for n in (1, 3, 4, 100, 1000)] == [1, 3, 3, 75, 936]


PEOPLE = {
    "type": "array",
    "items": {"type": "object", "properties": {"name": {"type": "string"}, "of": {"$ref": "#"}}, "required": ["name"]},
}


@pytest.mark.parametrize("seed", range(20))
def test_endless_answers_end_and_parse(seed: int) -> None:
    tokens, ended = walk(compiled(schema(PEOPLE)).matcher(frozenset({EOS}), 200), EOS, str(seed), 200)
    assert ended
    assert isinstance(json.loads(TOKENIZER.decode(tokens)), list)


def test_a_model_that_never_ends_a_string_is_brought_to_an_end() -> None:
    matcher = compiled(schema({"type": "string"})).matcher(frozenset({EOS}), 40)
    quote, letter = byte_tokens('"a')
    matcher.accept(quote)
    for _ in range(29):
        assert letter in allowed(matcher.mask)
        matcher.accept(letter)
    assert allowed(matcher.mask) == [quote]
    matcher.accept(quote)
    assert matcher.complete


def test_what_is_no_json_and_what_nobody_wants_closed_is_left_alone() -> None:
    letter = byte_tokens("a")[0]
    never = make_compiler(grammar_closing_tokens=0)
    for grammar in (compiled(Grammar("regex", "a+")), never.compile(schema({"type": "string", "pattern": "^a*$"}))):
        matcher = grammar.matcher(frozenset({EOS}), 4)
        for token in ([] if EOS in allowed(matcher.mask) else byte_tokens('"')) or [letter]:
            matcher.accept(token)
        for _ in range(6):
            assert letter in allowed(matcher.mask)
            matcher.accept(letter)
    never.close()
