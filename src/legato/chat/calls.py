"""Tool calls in the text of an answer: what a format has to say about them, and how they are found."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from legato.chat.brackets import Balanced, Malformed, Notation
from legato.core.answers import Tool

__all__ = ["Call", "CallReader", "CallStart", "FoundCalls", "Piece", "ToolFormat"]


@dataclass(frozen=True, slots=True)
class Call:
    """A complete call. arguments: JSON text of an object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; the arguments that follow, up to the next start, are its own."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of the call that began last: JSON text."""

    text: str


Piece = str | CallStart | CallArguments  # a text is content


class CallReader(Protocol):
    """Takes calls out of the text of one answer. The pieces joined do not depend on how the text was cut."""

    @property
    def in_call(self) -> bool:
        """A call was handed out whose arguments have not ended."""
        ...

    def push(self, text: str) -> list[Piece]: ...
    def finish(self) -> list[Piece]: ...


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family of models writes tool calls.

    name: as in --tool-call-parser. signs: texts by which a chat template shows that it is of this format.
    openers, closers: markers before and after calls; a closer may be missing. bare: brackets that begin a call without
    a marker, at the beginning of the answer or behind a closer. inner: control tokens inside of calls.
    begin(text behind the opener): where the bracketed value begins, None if that is open; Malformed.
    parse(the same text up to the end of that value): its calls; ValueError.
    grammar(tools, one, control tokens): Lark grammar of one call or several, with the rules `start: open calls`.
    write(name, arguments): a call as text.
    forced_head, forced_tail: what stands before (with the name as a group) and behind the arguments of a call that the
    grammar writes; None where arguments are not JSON.
    id_length: characters of a call's id, 0 for OpenAI's form.
    """

    name: str
    signs: tuple[str, ...]
    openers: tuple[str, ...]
    closers: tuple[str, ...]
    bare: str
    notation: Notation
    begin: Callable[[str], int | None]
    parse: Callable[[str], Sequence[Call]]
    grammar: Callable[[Sequence[Tool], bool, Mapping[str, int]], str]
    write: Callable[[str, Mapping[str, Any]], str]
    inner: tuple[str, ...] = ()
    forced_head: re.Pattern[str] | None = None
    forced_tail: str = ""
    id_length: int = 0
    opening: re.Pattern[str] | None = field(init=False)

    def __post_init__(self) -> None:
        pattern = re.compile("|".join(map(re.escape, self.openers))) if self.openers else None
        object.__setattr__(self, "opening", pattern)


class FoundCalls:
    """Finds calls to known tools in text that may hold anything.

    A call is handed out when it is complete and turned out to be one; whatever looked like one and is not (bad JSON,
    arguments that are no object, a tool that does not exist, an end in the middle) stays content, to the letter. Only
    white space beside calls is dropped.
    """

    def __init__(self, format: ToolFormat, names: Collection[str]) -> None:
        self._format = format
        self._names = frozenset(names)
        self._buffer = ""  # not decided yet; begins with the white space before a marker
        self._step: Callable[[list[Piece]], bool] = self._look
        self._at_start = True  # only white space so far: a bare call may begin
        self._after_call = False  # no content since the last call
        self._value = 0  # where the text behind the opener begins in the buffer
        self._scanned = 0
        self._scanner: Balanced | None = None

    @property
    def in_call(self) -> bool:
        return False  # calls are handed out whole

    def push(self, text: str) -> list[Piece]:
        """Takes more text; the pieces that are certain now."""
        self._buffer += text
        pieces: list[Piece] = []
        while self._step(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        """The text ends here: what is left is no call."""
        rest, self._buffer = self._buffer, ""
        return [] if not rest or (self._after_call and not rest.strip()) else [rest]

    def _look(self, pieces: list[Piece]) -> bool:
        """In content: find an opener, and hold back what may become one with the white space before it."""
        text = self._buffer
        found = self._opening(text)
        if found is None:
            self._emit(pieces, self._undecided(text))
            return False
        start, end = found
        space = len(text[:start].rstrip())
        self._emit(pieces, space)
        self._value = end - space
        self._scanner = None
        self._step = self._read
        return True

    def _read(self, pieces: list[Piece]) -> bool:
        """Behind an opener: the value, and whether it holds calls."""
        text = self._buffer
        try:
            if self._scanner is None:
                begin = self._format.begin(text[self._value :])
                if begin is None:
                    return False
                self._scanner = Balanced(self._format.notation)
                self._scanned = self._value + begin
            end = self._scanner.push(text, self._scanned)
        except Malformed as error:
            self._step = self._look
            self._emit(pieces, error.position if self._scanner else self._value + error.position)
            return True
        if end is None:
            self._scanned = len(text)
            return False
        calls = self._calls(text[self._value : end])
        if calls:
            pieces += calls
            self._buffer = text[end:]
            self._after_call = True
            self._at_start = False
        else:
            self._emit(pieces, end)
        self._step = self._close if calls else self._look
        return True

    def _close(self, pieces: list[Piece]) -> bool:
        """Behind a call: drop its closer, if there is one."""
        rest = self._buffer.lstrip()
        for closer in self._format.closers:
            if rest.startswith(closer):
                self._buffer = rest[len(closer) :]
                self._at_start = True
                self._step = self._look
                return True
        if any(closer.startswith(rest) for closer in self._format.closers):
            return False
        self._step = self._look
        return True

    def _calls(self, text: str) -> list[Piece]:
        """The calls of a complete value; none where one of them is not a call to a known tool."""
        try:
            calls = self._format.parse(text)
        except (ValueError, RecursionError):
            return []
        if any(call.name not in self._names for call in calls):
            return []
        return [piece for call in calls for piece in (CallStart(call.name), CallArguments(call.arguments))]

    def _opening(self, text: str) -> tuple[int, int] | None:
        """Where a call begins: at its marker, or bare; and the index behind the marker."""
        start = len(text) - len(text.lstrip())
        if self._at_start and start < len(text) and text[start] in self._format.bare:
            return start, start
        match = self._format.opening.search(text) if self._format.opening else None
        return match.span() if match else None

    def _undecided(self, text: str) -> int:
        """The index from which on a text may become white space and an opener."""
        keep = len(text)
        for opener in self._format.openers:
            for length in range(min(len(opener) - 1, len(text)), 0, -1):
                if text.endswith(opener[:length]):
                    keep = min(keep, len(text) - length)
                    break
        return len(text[:keep].rstrip())

    def _emit(self, pieces: list[Piece], end: int) -> None:
        """buffer[:end] is content."""
        if end:
            pieces.append(self._buffer[:end])
            self._buffer = self._buffer[end:]
            self._at_start = self._after_call = False
