"""What a template's operations cost, and how much one rendering may spend.

The units are counted, not timed: a template that passes once always passes. A step (a loop round, a call, a filter,
an operator) costs `STEP`, a character 1, a reference in a list 8, a new small object `STEP`. So the budget bounds the
time (a million steps) and the memory (units are about bytes). Operations are charged before they run wherever their
result can be larger than their arguments.
"""

import re
import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from jinja2 import TemplateError

__all__ = ["BUDGET", "Budget", "TemplateTooExpensive"]

BUDGET = 1 << 27
STEP = 128
REFERENCE = 8

_MAX_BITS = 4096  # of an integer that a template computes
_MAX_ROUND = 64  # digits
_MAX_INDENT = 16  # of JSON

# Widths of fields must be literals of at most three digits: a small format can otherwise ask for a large text.
_TOO_WIDE_FIELD = re.compile(r"\{[^{}]*:[^{}]*(?:\{|\d{4})")
_TOO_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*(?:\*|\d{4})")
_FIELD = 1000

_WHITE_SPACE = "".join(filter(str.isspace, map(chr, range(0x3001))))

# Filters that look into what they are given; those that go through a sequence; those that cost a step only.
_DEEP = frozenset({"dictsort", "e", "escape", "groupby", "join", "max", "min", "sort", "string", "unique", "urlencode"})
_SEQUENCE = _DEEP - {"e", "escape", "string", "urlencode"} | {
    "list", "map", "reject", "rejectattr", "reverse", "select", "selectattr",
}  # fmt: skip
_STEP_ONLY = frozenset({"count", "d", "default", "first", "last", "length"})


class TemplateTooExpensive(TemplateError):
    """The template needs more work than any real one."""


class Budget:
    """The units left for the rendering of the current thread."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._thread = threading.local()

    def reset(self) -> None:
        """A new rendering begins in this thread."""
        self._thread.left = self._total

    def spend(self, size: int = 0) -> None:
        """Takes one step and `size` units."""
        self._thread.left -= STEP + size
        if self._thread.left < 0:
            raise TemplateTooExpensive("the chat template needs too much work for these messages")

    def spend_deep(self, value: Any) -> None:
        """Pays for all strings and elements inside a value, shared ones as often as they would be written."""
        if isinstance(value, str):
            self.spend(len(value))
        elif isinstance(value, Mapping):
            for key, item in value.items():
                self.spend_deep(key)
                self.spend_deep(item)
        elif isinstance(value, Collection):
            for item in value:
                self.spend_deep(item)
        else:
            self.spend()

    def spend_shallow(self, *values: Any) -> None:
        """Pays for copying values without what they refer to."""
        self.spend(sum(map(_size, values)))

    def operator(self, operator: str, left: Any, right: Any) -> None:
        """A binary operator."""
        if operator == "*":
            self._product(left, right)
        elif operator == "**":
            self._number(_bits(left) * abs(right) if isinstance(right, int) else 0)
        elif operator == "%" and isinstance(left, str):
            self.percent_format(left, right)
        else:
            self.spend_shallow(left, right)

    def method(self, owner: Any, name: str, args: tuple[Any, ...]) -> None:
        """A method of a string or a container."""
        if not isinstance(owner, str):
            self.spend_deep([args, owner if name in ("index", "count") else None])
        elif name == "replace" and len(args) >= 2:
            self._replacement(owner, args[0], args[1])
        elif name == "join":
            self._joining(owner, args[0] if args else ())
        elif name in ("split", "rsplit", "splitlines"):
            separator = args[0] if args and isinstance(args[0], str) and args[0] else None
            pieces = owner.count(separator) if separator else sum(map(owner.count, _WHITE_SPACE))
            self.spend(len(owner) + pieces * STEP)
        elif name in ("startswith", "endswith"):
            self.spend_deep(args)
        else:
            self.spend_shallow(owner, *args)

    def filter(self, name: str, values: list[Any], kwargs: Mapping[str, Any]) -> None:
        """A filter: `values` are what it filters and its arguments. Iterators that it will use up become lists."""
        if not values or name in _STEP_ONLY:
            self.spend()
            return
        if name in _DEEP and isinstance(values[0], Iterator):
            values[0] = list(values[0])
        if name == "title" or (name in _SEQUENCE and isinstance(values[0], str)):
            self.spend(_size(values[0]) * STEP)  # one small string per character
        if name == "replace" and len(values) >= 3:
            self._replacement(str(values[0]), str(values[1]), str(values[2]))
        elif name == "join":
            self._joining(str(values[1] if len(values) > 1 else kwargs.get("d", "")), values[0])
        elif name == "indent":
            width = values[1] if len(values) > 1 else kwargs.get("width", 4)
            lines = str(values[0]).count("\n") + 1
            self.spend(_size(values[0]) + lines * (STEP + (width if isinstance(width, int) else _size(width))))
        elif name == "round":
            digits = [abs(value) for value in (*values[1:], *kwargs.values()) if isinstance(value, int)]
            self._number(max(digits, default=0), _MAX_ROUND)
        elif name == "format":
            self.percent_format(str(values[0]), [values[1:], kwargs])
        elif name in _DEEP:
            self.spend_deep(values)
        else:
            self.spend_shallow(*values)

    def format(self, text: str, args: Any) -> None:
        """`str.format`."""
        self._formatting(text, args, _TOO_WIDE_FIELD.search(text.replace("{{", "").replace("}}", "")) is not None)

    def percent_format(self, text: str, args: Any) -> None:
        """The operator `%` on a string."""
        self._formatting(text, args, _TOO_WIDE_PERCENT.search(text) is not None)

    def json(self, value: Any, indent: Any) -> None:
        """`tojson`."""
        if indent is not None and not (isinstance(indent, int) and indent <= _MAX_INDENT):
            raise TemplateTooExpensive("the chat template indents JSON too far")
        self.spend_deep(value)

    def _formatting(self, text: str, args: Any, too_wide: bool) -> None:
        if too_wide:
            raise TemplateTooExpensive("the chat template formats with a computed or too large width")
        self.spend(len(text) + _FIELD * (text.count("%") + text.count("{")))
        self.spend_deep(args)

    def _replacement(self, text: str, old: Any, new: Any) -> None:
        rounds = text.count(old) if isinstance(old, str) and old else len(text) + 1
        self.spend(len(text) + rounds * _size(new))

    def _joining(self, separator: str, values: Any) -> None:
        self.spend_deep(values)
        self.spend(len(separator) * (len(values) if isinstance(values, Collection) else 0))

    def _product(self, left: Any, right: Any) -> None:
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, str | list | tuple) and isinstance(times, int):
                self.spend(_size(sequence) * max(times, 0))
                return
        self._number(_bits(left) + _bits(right))

    def _number(self, size: int, most: int = _MAX_BITS) -> None:
        self.spend()
        if size > most:
            raise TemplateTooExpensive("the chat template computes with too large numbers")


def _size(value: Any) -> int:
    """About the bytes of a value without what it refers to."""
    if isinstance(value, str):
        return len(value)
    return REFERENCE * len(value) if isinstance(value, Collection) else 0


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0
