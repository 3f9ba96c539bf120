"""The end of a bracketed value in text that arrives in pieces."""

import re

__all__ = ["JSON", "PYTHON", "Balanced", "Malformed", "Notation", "first_bracket"]


class Malformed(ValueError):
    """No value can become of this text. `position` is the first character that does not fit."""

    def __init__(self, position: int) -> None:
        super().__init__(f"not a value from character {position} on")
        self.position = position


class Notation:
    """Which quotes and brackets a notation has, and which characters may stand outside of strings."""

    def __init__(self, quotes: str, brackets: str, plain: str) -> None:
        """brackets: opening ones, then closing ones. plain: a character class of regular expressions."""
        half = len(brackets) // 2
        self.quotes = frozenset(quotes)
        self.opening = frozenset(brackets[:half])
        self.closing = frozenset(brackets[half:])
        self.plain = re.compile(plain)


JSON = Notation('"', "{[}]", r"[\s,:0-9+\-.eEtrufalsn]")
PYTHON = Notation("\"'", "{[(}])", r"[\w\s,:=+\-.]")


class Balanced:
    """Counts brackets outside of strings, each character once. Linear, and blind to anything else that is wrong."""

    def __init__(self, notation: Notation) -> None:
        self._notation = notation
        self._depth = 0
        self._quote = ""
        self._escaped = False

    def push(self, text: str, start: int) -> int | None:
        """Goes on at text[start]; the index behind the value, None where it does not end yet. Malformed."""
        for index in range(start, len(text)):
            if self._ends(text[index], index):
                return index + 1
        return None

    def _ends(self, char: str, index: int) -> bool:
        notation = self._notation
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == self._quote:
                self._quote = ""
        elif char in notation.quotes:
            self._quote = char
        elif char in notation.opening:
            self._depth += 1
        elif char in notation.closing:
            self._depth -= 1
            return self._depth == 0
        elif notation.plain.match(char) is None:
            raise Malformed(index)
        return False


def first_bracket(text: str, brackets: str) -> int | None:
    """Where a value begins after white space; None while there is only that. Malformed where something else comes."""
    index = len(text) - len(text.lstrip())
    if index == len(text):
        return None
    if text[index] not in brackets:
        raise Malformed(index)
    return index
