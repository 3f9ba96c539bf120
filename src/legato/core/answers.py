"""What an answer is made of beside plain text: tools that may be called, pieces of calls, and reasoning."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["AnswerGate", "CallDelta", "Delta", "Reasoning", "Tool", "ToolUse"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call.

    parameters: JSON schema of its arguments, an object. definition: the tool as the client wrote it, for templates.
    strict: calls are held to the schema even where the model is free to call or not.
    """

    name: str
    parameters: Mapping[str, Any]
    definition: Mapping[str, Any]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request says about tools.

    offered: tools that the model is told of. tools: those that it may call. forced: it has to call one at least.
    one: it may call one at most.
    """

    offered: Sequence[Tool] = ()
    tools: Sequence[Tool] = ()
    forced: bool = False
    one: bool = False

    @property
    def held(self) -> bool:
        """Calls need a grammar."""
        return bool(self.tools) and (self.forced or self.one or any(tool.strict for tool in self.tools))


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of a call. `id` and `name` are set on the first piece of each call, and only there."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer: of its content, of its reasoning, or of a call. Exactly one of them is set."""

    content: str = ""
    reasoning: str = ""
    call: CallDelta | None = None


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The two tokens around a model's reasoning. opened: the prompt ends behind the first of them."""

    start_id: int
    end_id: int
    opened: bool


class AnswerGate:
    """Follows the output tokens of one choice from reasoning to answer.

    Where the prompt did not open the reasoning, it is the first token that does, or there is none.
    """

    def __init__(self, reasoning: Reasoning | None) -> None:
        self._reasoning = reasoning
        self._undecided = reasoning is not None and not reasoning.opened
        self.answering = reasoning is None
        self.num_reasoning = 0  # tokens so far, those around the reasoning included

    @property
    def may_begin(self) -> bool:
        """The next token may be the one that opens the reasoning."""
        return self._undecided

    def push(self, token: int) -> bool:
        """Takes the next token; whether it belongs to the answer."""
        if self.answering:
            return True
        assert self._reasoning is not None
        if self._undecided:
            self._undecided = False
            if token != self._reasoning.start_id:
                self.answering = True
                return True
        self.num_reasoning += 1
        self.answering = token == self._reasoning.end_id
        return False
