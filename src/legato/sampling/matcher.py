"""Grammar masks: which tokens may come next in one sequence."""

from __future__ import annotations  # llguidance is loaded at first use

import ctypes
import sys
from typing import TYPE_CHECKING

from legato.core.grammar import allows
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
        self._mask_type = ctypes.c_uint32 * ((vocab_size + 1 + 31) // 32)
        self.nothing_else = (1 << vocab_size).to_bytes(ctypes.sizeof(self._mask_type), "little")
        self.first = self.find_mask(template)
        if template.is_error():
            raise ValueError(template.get_error())
        if self.first == self.nothing_else:
            raise ValueError("nothing but the empty text fits it")
        self._template = template

    def matcher(
        self, end_token_ids: frozenset[int], max_tokens: int | None = None, *, may_retry: bool = False
    ) -> TokenMatcher:
        """A matcher at the beginning of an answer. `end_token_ids` are allowed where the answer may end."""
        return TokenMatcher(self, self._template.deep_copy(), end_token_ids, max_tokens, may_retry)

    def find_mask(self, matcher: LLMatcher) -> bytes:
        """What may come next, a bit per token and one for an end. Only that one where the matcher has an error."""
        words = self._mask_type()  # llguidance's own bytes take it three times as long
        matcher.unsafe_compute_mask_ptr(ctypes.addressof(words), ctypes.sizeof(words))
        return bytes(words)


class TokenMatcher:
    """`legato.core.grammar.Matcher` over llguidance. One thread at a time.

    A model mostly goes on with a token that fits: with `may_retry`, masks are found when one does not. `mask` is None
    until then.
    """

    __slots__ = ("_closes", "_ends", "_grammar", "_left", "_matcher", "_max_tokens", "_may_retry", "_open_brackets",
                 "complete", "failure", "mask")  # fmt: skip

    def __init__(
        self, grammar: MaskedGrammar, matcher: LLMatcher, ends: frozenset[int], max_tokens: int | None, may_retry: bool
    ) -> None:
        self._grammar = grammar
        self._matcher = matcher
        self._ends = sum(1 << end for end in ends if end < grammar.vocab_size)
        self._may_retry = may_retry
        self._max_tokens = self._left = sys.maxsize if max_tokens is None else max_tokens
        self._open_brackets = 0
        self._closes = False
        self.complete = False
        self.failure: str | None = None
        self.mask: bytes | None = self._with_ends(grammar.first)

    def accept(self, token: int) -> None:
        """The sequence goes on with `token`, which fits and is no end token."""
        self._count(token)
        if self._matcher.consume_token(token) and self._may_wait():
            self.mask = None
        else:
            self._find_mask()

    def fits(self, token: int) -> bool:
        """Whether a token may come next. If not, `mask` is there now."""
        if self.mask is not None:
            return allows(self.mask, token)
        if self._matcher.validate_tokens([token]) == 1:
            return True
        if self.failure is None:
            self._find_mask()
        return False

    def _count(self, token: int) -> None:
        """Once an answer is being closed, it is until it ends."""
        closing = self._grammar.closing
        self._left -= 1
        if closing is not None and not self._closes:
            self._open_brackets += closing.opens[token]
            self._closes = self._left <= closing.takes(self._max_tokens, self._open_brackets)

    def _may_wait(self) -> bool:
        """Whether the mask can wait until a token does not fit: it does where the answer cannot end here.

        Where only one text can follow, a mask allows one way to write it, and `fits` would allow any.
        """
        if not self._may_retry or self._closes:
            return False
        return not self._matcher.is_accepting() and not self._matcher.compute_ff_bytes()

    def _find_mask(self) -> None:
        grammar, matcher = self._grammar, self._matcher
        raw = grammar.find_mask(matcher)
        if matcher.is_error():
            self.failure = f"the grammar gives no next token: {' '.join(matcher.get_error().split())}"
            return
        if raw == grammar.nothing_else:
            self.complete = True
            return
        self.mask = self._with_ends(raw)
        if self._closes and grammar.closing is not None:
            self.mask = grammar.closing.narrow(self.mask, self._ends)

    def _with_ends(self, raw: bytes) -> bytes:
        size = self._grammar.vocab_size
        num_bytes = (size + 7) // 8
        if not allows(raw, size):
            return raw[:num_bytes]
        return (int.from_bytes(raw, "little") & ~(1 << size) | self._ends).to_bytes(len(raw), "little")[:num_bytes]
