"""Tool calls and reasoning on the wire: as deltas of a stream, and joined in a message."""

from collections.abc import Iterable
from typing import Any

from legato.core.answers import Delta

__all__ = ["Message", "delta_body"]


def delta_body(delta: Delta) -> dict[str, Any]:
    """The `delta` of a chunk. Reasoning comes under both names that clients know."""
    if delta.call is None:
        return {"content": delta.content} if delta.content else _reasoning(delta.reasoning)
    call = delta.call
    if call.id is None:
        return {"tool_calls": [{"index": call.index, "function": {"arguments": call.arguments}}]}
    function = {"name": call.name, "arguments": call.arguments}
    return {"tool_calls": [{"index": call.index, "id": call.id, "type": "function", "function": function}]}


class Message:
    """The deltas of one choice, joined, behind the text that it begins with."""

    def __init__(self, echo: str = "") -> None:
        self._content = [echo]
        self._reasoning: list[str] = []
        self._calls: list[tuple[str, str, list[str]]] = []  # id, name, pieces of arguments

    def add(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            self._content.append(delta.content)
            self._reasoning.append(delta.reasoning)
            if delta.call is None:
                continue
            if delta.call.id is not None:
                self._calls.append((delta.call.id, delta.call.name or "", []))
            self._calls[-1][2].append(delta.call.arguments)

    @property
    def text(self) -> str:
        return "".join(self._content)

    def body(self) -> dict[str, Any]:
        """The `message` of a choice. Without any content, it is null beside calls or reasoning."""
        reasoning = "".join(self._reasoning)
        calls = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": "".join(arguments)}}
            for id, name, arguments in self._calls
        ]
        content = self.text
        return {
            "role": "assistant",
            "content": None if not content and (calls or reasoning) else content,
            "refusal": None,
            **(_reasoning(reasoning) if reasoning else {}),
            **({"tool_calls": calls} if calls else {}),
        }


def _reasoning(text: str) -> dict[str, str]:
    return {"reasoning": text, "reasoning_content": text}
