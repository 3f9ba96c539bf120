"""Answers in JSON are brought to their end before max_tokens."""

import json

import pytest

from legato.core.grammar import Grammar
from legato.sampling.closing import Closing
from support.byte_level import EOS, TOKENIZER, byte_tokens
from support.conformance import walk
from support.grammars import allowed, compiled, make_compiler, schema

TOKENS = [b"", b'"', b'"}', b"]", b'a"', b"{", b",", b"[1", b"null", b"7"]


def mask_of(*tokens: int) -> bytes:
    return sum(1 << token for token in tokens).to_bytes(2, "little")


@pytest.mark.parametrize(
    ("mask", "left"),
    [
        ((0, 1, 5, 8), (0,)),  # the end token, which is 0 here
        ((1, 2, 3, 4, 5, 8), (1, 2)),
        ((3, 4, 5, 8), (3,)),
        ((4, 5, 6, 7, 8, 9), (6,)),
        ((4, 5, 7, 8, 9), (8,)),
        ((4, 5, 7, 9), (4, 9)),
        ((5, 7), (5, 7)),
    ],
)
def test_what_is_left_of_a_mask(mask: tuple[int, ...], left: tuple[int, ...]) -> None:
    assert Closing(TOKENS, 64).narrow(mask_of(*mask), 1) == mask_of(*left)


def test_closing_takes_a_quarter_at_most_and_more_inside_many_brackets() -> None:
    closing = Closing(TOKENS, 64)
    assert closing.opens == [0, 0, -1, -1, 0, 1, 0, 1, 0, 0]
    assert [closing.takes(n, 0) for n in (1, 3, 4, 100, 1000)] == [0, 0, 1, 25, 64]
    assert [closing.takes(1000, n) for n in (-3, 2, 54, 55, 900)] == [64, 64, 540, 550, 750]


SUM = {
    "type": "object",
    "properties": {"l": {"anyOf": [{"$ref": "#"}, {"type": "integer"}]}, "r": {"type": "integer"}},
    "required": ["l", "r"],
    "additionalProperties": False,
}


def test_a_model_that_only_opens_objects_is_brought_to_an_end() -> None:
    """Each of them has to say something before it may close."""
    matcher = compiled(schema(SUM)).matcher(frozenset({EOS}), 400)
    opening, tokens = byte_tokens('{"l":'), []
    while not matcher.complete and len(tokens) < 400:
        fitting, wish = allowed(matcher.mask), opening[len(tokens) % len(opening)]
        if wish not in fitting:
            opening = [-1]
        tokens.append(wish if wish in fitting else fitting[0])
        matcher.accept(tokens[-1])
    assert matcher.complete
    assert json.loads(TOKENIZER.decode(tokens))


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
