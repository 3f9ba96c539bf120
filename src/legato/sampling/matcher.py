"""Grammar masks: which tokens may come next in one sequence."""

from __future__ import annotations  # llguidance is loaded at first use

import sys
from typing import TYPE_CHECKING

from legato.sampling.closing import Closing

if TYPE_CHECKING:
    from llguidance import LLMatcher

__all__ = ["MaskedGrammar", "TokenMatcher"]


class MaskedGrammar:
    """A compiled grammar over a vocabulary of `vocab_size` tokens, to which llguidance sees an end token added.

    That token is no real one: its bit in a mask says that the answer may end here, whatever the end tokens of the
    request are. `nothing_else` is the mask in which it is alone.
    """

    def __init__(self, template: LLMatcher, vocab_size: int, closing: Closing | None = None) -> None:
        """`template` has accepted nothing. ValueError: no token can begin an answer."""
        self.vocab_size = vocab_size
        self.closing = closing
        words = (vocab_size + 1 + 31) // 32
        self.nothing_else = (1 << vocab_size).to_bytes(4 * words, "little")
        self.first = template.compute_bitmask()
        if template.is_error():
            raise ValueError(template.get_error())
        if self.first == self.nothing_else:
            raise ValueError("nothing but the empty text fits it")
        self._template = template

    def matcher(self, end_token_ids: frozenset[int], max_tokens: int | None = None) -> TokenMatcher:
        """A matcher at the beginning of an answer. `end_token_ids` are allowed where the answer may end."""
        return TokenMatcher(self, self._template.deep_copy(), end_token_ids, max_tokens)


class TokenMatcher:
    """`legato.core.grammar.Matcher` over llguidance. One thread at a time."""

    __slots__ = ("_closing_in", "_ends", "_grammar", "_matcher", "complete", "failure", "mask")

    def __init__(
        self, grammar: MaskedGrammar, matcher: LLMatcher, ends: frozenset[int], max_tokens: int | None
    ) -> None:
        self._grammar = grammar
        self._matcher = matcher
        self._ends = sum(1 << end for end in ends if end < grammar.vocab_size)
        closing = grammar.closing
        self._closing_in = sys.maxsize if closing is None or max_tokens is None else closing.begins_at(max_tokens)
        self.complete = False
        self.failure: str | None = None
        self.mask = self._with_ends(grammar.first)

    def accept(self, token: int) -> None:
        """The sequence goes on with `token`, which `mask` allows and which is no end token."""
        matcher = self._matcher
        raw = matcher.compute_bitmask() if matcher.consume_token(token) else b""
        if matcher.is_error():
            self.failure = f"the grammar gives no next token: {' '.join(matcher.get_error().split())}"
        elif raw == self._grammar.nothing_else:
            self.complete = True
        else:
            self.mask = self._with_ends(raw)
            self._closing_in -= 1
            if self._closing_in <= 0 and self._grammar.closing is not None:
                self.mask = self._grammar.closing.narrow(self.mask, self._ends)

    def _with_ends(self, raw: bytes) -> bytes:
        size = self._grammar.vocab_size
        num_bytes = (size + 7) // 8
        if not raw[size // 8] >> size % 8 & 1:
            return raw[:num_bytes]
        return (int.from_bytes(raw, "little") & ~(1 << size) | self._ends).to_bytes(len(raw), "little")[:num_bytes]
