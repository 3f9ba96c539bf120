"""Bring an answer in JSON to its end before max_tokens cuts it off."""

from collections.abc import Iterable

__all__ = ["Closing"]

_CLOSERS = frozenset(b'"]}')
_COMMAS = (b",", b',"')
_OPENERS = frozenset(b"[{,")
_PER_BRACKET = 10  # tokens: what an object that is open may still have to say before it closes


class Closing:
    """Narrows masks in the last tokens of an answer: to end tokens, else to quotes, else to brackets that close, else
    to commas, else to words, else to what opens nothing and is no white space; not at all where none of those fits.
    Quotes come before brackets because brackets are text in a string. Commas come behind brackets: what follows is
    needed then. Words come before the rest because digits may go on for ever. Whatever is left leads to an answer that
    fits the grammar.
    """

    def __init__(self, tokens: Iterable[bytes], most: int) -> None:
        """tokens: bytes of each id. most: the last tokens of an answer that are for closing, and at most a quarter.

        `opens` counts the brackets that each id opens, less those that it closes. Those in strings count too: an
        answer is closed somewhat early or late then.
        """
        self._most = most
        self.opens: list[int] = []
        self._quotes = self._brackets = self._commas = self._words = self._others = 0
        for id, token in enumerate(tokens):
            self.opens.append(sum(map(token.count, (b"[", b"{"))) - sum(map(token.count, (b"]", b"}"))))
            if token and _CLOSERS.issuperset(token):
                if token.startswith(b'"'):
                    self._quotes |= 1 << id
                else:
                    self._brackets |= 1 << id
            elif token in _COMMAS:
                self._commas |= 1 << id
            elif token.isalpha():
                self._words |= 1 << id
            elif _OPENERS.isdisjoint(token) and not token.isspace():
                self._others |= 1 << id

    def takes(self, max_tokens: int, open_brackets: int) -> int:
        """The last tokens of an answer that are for closing: more inside many brackets, three quarters at most."""
        return max(min(self._most, max_tokens // 4), min(_PER_BRACKET * open_brackets, max_tokens * 3 // 4))

    def narrow(self, mask: bytes, ends: int) -> bytes:
        """ends: a bit for each end token."""
        allowed = int.from_bytes(mask, "little")
        for some in (ends, self._quotes, self._brackets, self._commas, self._words, self._others):
            if allowed & some:
                return (allowed & some).to_bytes(len(mask), "little")
        return mask
