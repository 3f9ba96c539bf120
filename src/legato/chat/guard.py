"""Keeps the control tokens in user text apart from those that a template writes."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from legato.core.errors import RequestError

__all__ = ["Guard", "Marks"]

_NONCHARACTERS = (*range(0xFDD0, 0xFDF0), *(plane << 16 | low for plane in range(17) for low in (0xFFFE, 0xFFFF)))


class Guard:
    """The control tokens of one tokenizer, as texts that user strings must not form."""

    def __init__(self, control_tokens: Iterable[str]) -> None:
        tokens = sorted(control_tokens, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, tokens))) if tokens else None
        self.heads = frozenset(token[:n] for token in tokens for n in range(1, len(token)))
        self.longest_head = max(map(len, self.heads), default=0)
        self.first_characters = sorted({token[0] for token in tokens})

    def marks(self, values: Any) -> "Marks":
        """Marks for one prompt. values: all user data in it, as a JSON value."""
        return Marks(self, values)


class Marks:
    """Replaces the first character of every control token in user strings, until the template has been rendered.

    Each such character (often only "<") has its own stand-in, a Unicode noncharacter that occurs nowhere in the user
    data: lengths stay the same and no template sees white space or punctuation where there was none. The end of a
    string that begins a control token is replaced too, so that two strings side by side cannot form one.
    """

    def __init__(self, guard: Guard, values: Any) -> None:
        self._guard = guard
        strings = list(_strings(values))
        self._free = (chr(code) for code in _NONCHARACTERS if not any(chr(code) in string for string in strings))
        self._mark: dict[str, str] = {}
        for char in guard.first_characters:
            self._mark[char] = self.unused()

    def unused(self) -> str:
        """A character that is nowhere in the user data, another one each time."""
        mark = next(self._free, None)
        if mark is None:
            raise RequestError("the messages use too many Unicode noncharacters", param="messages")
        return mark

    def protect(self, value: Any) -> Any:
        """A copy of a JSON value with all strings protected, keys included."""
        if isinstance(value, str):
            return self._protect_text(value)
        if isinstance(value, Mapping):
            return {self.protect(key): self.protect(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.protect(item) for item in value]
        return value

    def restore(self, text: str) -> str:
        """The text as the user wrote it."""
        for char, mark in self._mark.items():
            text = text.replace(mark, char)
        return text

    def _protect_text(self, text: str) -> str:
        pattern = self._guard.pattern
        if pattern is None:
            return text
        while pattern.search(text):  # again, since replacing one of two overlapping tokens can leave the other
            text = pattern.sub(lambda match: self._mark[match[0][0]] + match[0][1:], text)
        for n in range(min(self._guard.longest_head, len(text)), 0, -1):
            start = len(text) - n
            if text[start:] in self._guard.heads:
                text = text[:start] + self._mark[text[start]] + text[start + 1 :]
        return text


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
