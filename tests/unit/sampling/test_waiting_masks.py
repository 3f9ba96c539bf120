"""Masks that wait, and the slices of the vocabulary: what fits is what llguidance says alone."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from legato.core.config import GrammarConfig
from legato.core.grammar import Grammar
from legato.sampling.compiler import GrammarCompiler, Vocabulary
from legato.sampling.matcher import MaskedGrammar, TokenMatcher
from support.grammars import schema

WORDS = (
    "he",
    "hes",
    "see",
    "sees",
    "the",
    " the",
    "ees",
    "es",
    "Ess",
    "name",
    "tags",
    " e",
    "s e",
    "10",
    "202",
    "é",
    "éé",
)
LONG = ("internationalisation", "incomprehensibilities")
MARKS = ('"', '",', '":', '":"', '"}', '"]', '"]}', "[{", '{"', ', "', "\\", '\\"', "\\n", "\n", "\n  ")
TOKENS = [b"<s>", b"</s>", *(bytes([byte]) for byte in range(256))]
TOKENS += [word.encode() for word in dict.fromkeys((*WORDS, *LONG, *MARKS)) if word.encode() not in TOKENS]
SIZE, END = len(TOKENS), 1

GRAMMARS = {
    "bounded": schema({"type": "string", "maxLength": 9}),
    "list": schema({"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 5}, "maxItems": 2}),
    "long": schema({"type": "object", "properties": {"name": {"type": "string", "maxLength": 24}}}),
    "open": schema({"type": "string"}),
    "pattern": schema({"type": "string", "pattern": "^[a-z ]{2,8}-the end$"}),
    "either": schema(
        {"anyOf": [{"enum": ["sees the", "seen"]}, {"type": "string", "maxLength": 3}, {"type": "number"}]}
    ),
    "format": schema({"type": "string", "format": "date"}),
    "object": Grammar("json_object"),
    "regex": Grammar("regex", "[a-z]{3,12}\\.(the|then)?"),
    "choice": Grammar("choice", '["the sees", "these", "international"]'),
    "lark": Grammar("lark", 'start: /[esh ]{1,9}/ "." | "the"'),
}


def encode(text: str) -> list[int]:
    return [TOKENS.index(bytes([byte])) for byte in text.encode()]


@cache
def compiler() -> GrammarCompiler:
    return GrammarCompiler(Vocabulary(SIZE, TOKENS.__getitem__, (0, 1), encode), GrammarConfig())


@cache
def ours(name: str) -> MaskedGrammar:
    return compiler().compile(GRAMMARS[name])


class Alone:
    """A vocabulary for llguidance without us. The last token stands for an end."""

    bos_token_id = None
    is_tokenizer_wrapper = True
    tokens = (*TOKENS, b"<end>")
    eos_token_id = SIZE
    special_token_ids = (0, 1, SIZE)

    def __call__(self, text: str) -> list[int]:
        return encode(text)


@cache
def alone(name: str) -> LLMatcher:
    wrapper: Any = Alone()
    return LLMatcher(
        LLTokenizer(wrapper, n_vocab=SIZE + 1, eos_token=SIZE),
        compiler()._trial.run(*compiler()._text(GRAMMARS[name]))["grammar"],
        log_level=0,
    )


def bits(mask: bytes) -> set[int]:
    return {token for token in range(len(mask) * 8) if mask[token // 8] >> token % 8 & 1}


def expected(reference: LLMatcher) -> set[int]:
    """Tokens that may come next, END among them where the answer may end."""
    allowed = bits(reference.compute_bitmask())
    return allowed - {SIZE} | ({END} if SIZE in allowed else set())


@pytest.mark.parametrize("name", GRAMMARS)
@settings(max_examples=40)
@given(data=st.data())
def test_what_fits_is_what_llguidance_says_alone(name: str, data: st.DataObject) -> None:
    matcher = ours(name).matcher(frozenset({END}), may_retry=True)
    reference = alone(name).deep_copy()
    for _ in range(data.draw(st.integers(1, 30))):
        allowed = expected(reference)
        assert matcher.mask is None or bits(matcher.mask) == allowed
        guess = data.draw(st.integers(0, SIZE - 1))
        if matcher.mask is None:
            assert matcher.fits(guess) == (guess in allowed)
            assert (matcher.mask is None) == (guess in allowed), "found when it is needed"
            assert matcher.mask is None or bits(matcher.mask) == allowed
        token = guess if guess in allowed else data.draw(st.sampled_from(sorted(allowed)))
        if token == END:
            return
        assert matcher.fits(token)
        matcher.accept(token)
        assert reference.consume_token(token)
        assert matcher.failure is None
        assert matcher.complete == (bits(reference.compute_bitmask()) == {SIZE}), "only an end can follow"
        if matcher.complete:
            return


def after(name: str, text: str, **options: Any) -> TokenMatcher:
    matcher = ours(name).matcher(frozenset({END}), **options)
    for token in encode(text):
        assert matcher.fits(token)
        matcher.accept(token)
    return matcher


def test_masks_wait_where_an_answer_goes_on_in_several_ways() -> None:
    assert after("bounded", '"', may_retry=True).mask is None
    assert after("bounded", '"the').mask is not None, "nobody would try again"
    assert after("open", '"the', may_retry=True).mask is None
    assert after("long", '{"name":"', may_retry=True).mask is None
    assert after("choice", "the s", may_retry=True).mask is not None, "one text follows, and it is written in one way"
    assert after("either", "12", may_retry=True).mask is not None, "it may end here"
    closing = after("bounded", '"thee', may_retry=True, max_tokens=6)
    assert closing.mask is not None, "it is to be closed"
    assert bits(closing.mask) <= {token for token in range(SIZE) if TOKENS[token].startswith(b'"')}


def test_a_mask_is_there_when_a_token_does_not_fit_and_waits_again_afterwards() -> None:
    matcher = after("bounded", '"', may_retry=True)
    assert not matcher.fits(END)
    assert matcher.mask is not None
    assert matcher.fits(encode("t")[0]), "sampled with that mask"
    matcher.accept(encode("t")[0])
    assert matcher.mask is None


def test_a_matcher_that_has_failed_says_so_again() -> None:
    matcher = after("bounded", '"', may_retry=True)
    matcher.accept(END)  # no token of a text, which nobody should do
    failure = matcher.failure
    assert failure is not None
    matcher.mask = None
    assert not matcher.fits(encode("t")[0])
    assert (matcher.failure, matcher.mask) == (failure, None)
