"""The text of one answer, piece by piece, to deltas: reasoning, content and calls."""

import secrets
import string
from collections.abc import Callable, Iterable

from legato.chat.calls import CallArguments, CallReader, CallStart, Piece
from legato.chat.reasoning import ReasoningSplit
from legato.core.answers import CallDelta, Delta

__all__ = ["AnswerReader", "call_id"]


class AnswerReader:
    """Reads one choice. The deltas joined are the whole answer: there is no other way to get one."""

    def __init__(
        self, split: ReasoningSplit | None, calls: CallReader | None, new_id: Callable[[], str], *, show_reasoning: bool
    ) -> None:
        """split, calls: None where there is nothing to split off, or to find."""
        self._split = split
        self._calls = calls
        self._new_id = new_id
        self._show_reasoning = show_reasoning
        self.num_calls = 0

    @property
    def reads_calls(self) -> bool:
        """Whether it looks for calls at all."""
        return self._calls is not None

    @property
    def in_call(self) -> bool:
        """A call has begun and not ended: its arguments are no JSON yet."""
        return self._calls is not None and self._calls.in_call

    def push(self, text: str, *, last: bool = False) -> list[Delta]:
        """Takes more text; what it adds to the answer. last: no more text follows."""
        reasoning, content = self._split.push(text) if self._split else ("", text)
        if last and self._split:
            more_reasoning, more_content = self._split.finish()
            reasoning, content = reasoning + more_reasoning, content + more_content
        deltas = [Delta(reasoning=reasoning)] if reasoning and self._show_reasoning else []
        if self._calls is None:
            return [*deltas, Delta(content=content)] if content else deltas
        pieces = self._calls.push(content) + (self._calls.finish() if last else [])
        return deltas + self._deltas(pieces)

    def _deltas(self, pieces: Iterable[Piece]) -> list[Delta]:
        """Pieces with texts joined, and calls numbered and named."""
        deltas: list[Delta] = []
        for piece in pieces:
            if isinstance(piece, str):
                if deltas and deltas[-1].content:
                    piece = deltas.pop().content + piece
                deltas.append(Delta(content=piece))
            elif isinstance(piece, CallStart):
                deltas.append(Delta(call=CallDelta(self.num_calls, "", self._new_id(), piece.name)))
                self.num_calls += 1
            elif isinstance(piece, CallArguments):
                deltas.append(Delta(call=CallDelta(self.num_calls - 1, piece.text)))
        return deltas


def call_id(length: int) -> str:
    """A new id of a call: OpenAI's form, or so many letters and digits."""
    if not length:
        return f"call_{secrets.token_hex(12)}"
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(length))
