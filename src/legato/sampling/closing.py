"""Bring an answer in JSON to its end before max_tokens cuts it off."""

from collections.abc import Iterable

__all__ = ["Closing"]

_CLOSERS = frozenset(b'"]}')
_OPENERS = frozenset(b"[{,")


class Closing:
    """Narrows masks in the last tokens of an answer: to end tokens, else to quotes, else to brackets that close, else
    to what opens nothing and is no white space; not at all where none of those fits. Quotes come before brackets
    because brackets are text in a string. Whatever is left leads to an answer that fits the grammar.
    """

    def __init__(self, tokens: Iterable[bytes], most: int) -> None:
        """tokens: bytes of each id. most: the last tokens of an answer that are for closing, and at most a quarter."""
        self._most = most
        self._quotes = self._brackets = self._others = 0
        for id, token in enumerate(tokens):
            if token and _CLOSERS.issuperset(token):
                if token.startswith(b'"'):
                    self._quotes |= 1 << id
                else:
                    self._brackets |= 1 << id
            elif _OPENERS.isdisjoint(token) and not token.isspace():
                self._others |= 1 << id

    def begins_at(self, max_tokens: int) -> int:
        """Tokens of an answer after which it is to be closed."""
        return max_tokens - min(self._most, max_tokens // 4)

    def narrow(self, mask: bytes, ends: int) -> bytes:
        """ends: a bit for each end token."""
        allowed = int.from_bytes(mask, "little")
        for some in (ends, self._quotes, self._brackets, self._others):
            if allowed & some:
                return (allowed & some).to_bytes(len(mask), "little")
        return mask
