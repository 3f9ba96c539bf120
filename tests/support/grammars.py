"""Grammars over the byte-level tokenizer of the tests."""

import json
from functools import cache
from typing import Any

from legato.core.config import GrammarConfig
from legato.core.grammar import Grammar, json_grammar
from legato.sampling.compiler import GrammarCompiler, Vocabulary
from legato.sampling.matcher import MaskedGrammar, TokenMatcher
from support.byte_level import EOS, TOKENIZER, VOCAB

__all__ = ["allowed", "compiled", "compiler", "ends_after", "schema", "spell"]


def make_compiler(**config: Any) -> GrammarCompiler:
    special = TOKENIZER.special_tokens.values()
    vocabulary = Vocabulary(VOCAB, TOKENIZER.token_bytes, special, TOKENIZER.encode_further)
    return GrammarCompiler(vocabulary, GrammarConfig(**config))


@cache
def compiler() -> GrammarCompiler:
    """One for all tests: it has a process and a vocabulary behind it."""
    return make_compiler()


@cache
def compiled(grammar: Grammar) -> MaskedGrammar:
    return compiler().compile(grammar)


def schema(value: Any) -> Grammar:
    return json_grammar(json.dumps(value), "schema")


def allowed(mask: bytes) -> list[int]:
    return [token for token in range(VOCAB) if mask[token // 8] >> token % 8 & 1]


def spell(grammar: Grammar, text: str) -> TokenMatcher:
    """The matcher after `text`, in the longest tokens that are allowed. AssertionError: it does not fit."""
    matcher = compiled(grammar).matcher(frozenset({EOS}))
    rest = text.encode()
    while rest:
        assert not matcher.complete, f"complete before {rest!r}"
        token = max(
            (each for each in allowed(matcher.mask) if each != EOS and rest.startswith(TOKENIZER.token_bytes(each))),
            key=lambda each: len(TOKENIZER.token_bytes(each)),
            default=-1,
        )
        assert token >= 0, f"{rest!r} may not follow {text.encode().removesuffix(rest)!r}"
        matcher.accept(token)
        assert matcher.failure is None, matcher.failure
        rest = rest[len(TOKENIZER.token_bytes(token)) :]
    return matcher


def ends_after(grammar: Grammar, text: str) -> bool:
    """Whether `text` is a whole answer."""
    matcher = spell(grammar, text)
    return matcher.complete or bool(matcher.mask[EOS // 8] >> EOS % 8 & 1)
