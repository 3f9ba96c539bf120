"""A grammar for an answer that comes behind reasoning."""

from legato.core.answers import AnswerGate, Reasoning
from legato.core.grammar import CompiledGrammar, Matcher, allows

__all__ = ["BehindReasoning"]


class BehindReasoning:
    """`legato.core.grammar.CompiledGrammar`: anything but an end while the model reasons, then the grammar.

    The answer is not brought to its end before max_tokens: how many of them the reasoning takes is not known.
    """

    def __init__(self, grammar: CompiledGrammar, reasoning: Reasoning) -> None:
        self._grammar = grammar
        self._reasoning = reasoning
        self.vocab_size = grammar.vocab_size

    def matcher(
        self, end_token_ids: frozenset[int], max_tokens: int | None = None, *, may_retry: bool = False
    ) -> Matcher:
        inner = self._grammar.matcher(end_token_ids, may_retry=may_retry)
        anything = _with_bits(bytes((self.vocab_size + 7) // 8), range(self.vocab_size))
        return _Matcher(inner, self._reasoning, _without_bits(anything, end_token_ids))


class _Matcher:
    """`legato.core.grammar.Matcher`. The grammar does not see the reasoning."""

    __slots__ = ("_first", "_gate", "_inner", "_reasoning_mask")

    def __init__(self, inner: Matcher, reasoning: Reasoning, reasoning_mask: bytes) -> None:
        self._inner = inner
        self._gate = AnswerGate(reasoning)
        self._reasoning_mask = reasoning_mask
        assert inner.mask is not None  # nothing has been accepted
        self._first = _with_bits(inner.mask, (reasoning.start_id,))  # the answer may begin, or the reasoning

    @property
    def mask(self) -> bytes | None:
        if self._gate.may_begin:
            return self._first
        return self._inner.mask if self._gate.answering else self._reasoning_mask

    @property
    def complete(self) -> bool:
        return self._gate.answering and self._inner.complete

    @property
    def failure(self) -> str | None:
        return self._inner.failure

    def fits(self, token: int) -> bool:
        mask = self.mask
        return self._inner.fits(token) if mask is None else allows(mask, token)

    def accept(self, token: int) -> None:
        if self._gate.push(token):
            self._inner.accept(token)


def _with_bits(mask: bytes, ids: range | tuple[int, ...]) -> bytes:
    bits = bytearray(mask)
    for id in ids:
        bits[id // 8] |= 1 << id % 8
    return bytes(bits)


def _without_bits(mask: bytes, ids: frozenset[int]) -> bytes:
    bits = bytearray(mask)
    for id in ids:
        if id // 8 < len(bits):
            bits[id // 8] &= ~(1 << id % 8)
    return bytes(bits)
