"""The answers of all choices of one HTTP request: what their texts mean, and how they end."""

from collections.abc import Callable, Sequence

from legato.chat.answer import AnswerReader
from legato.core.answers import Delta
from legato.core.types import FinishReason
from legato.engine.outputs import Output

__all__ = ["Answers", "NewReader", "joined", "plain_reader"]

NewReader = Callable[[], AnswerReader]


def plain_reader() -> AnswerReader:
    """Of a choice whose text is all content."""
    return AnswerReader(None, None, str, show_reasoning=True)


def joined(echo: str, deltas: Sequence[Delta]) -> list[Delta]:
    """Deltas behind the text that a choice begins with, in one piece where both are content."""
    if echo and deltas and deltas[0].content:
        return [Delta(content=echo + deltas[0].content), *deltas[1:]]
    return [Delta(content=echo), *deltas] if echo else list(deltas)


class Answers:
    """One reader for each choice."""

    def __init__(self, new_reader: NewReader, num_choices: int) -> None:
        self._readers = [new_reader() for _ in range(num_choices)]

    def push(self, index: int, output: Output) -> Sequence[Delta]:
        """What the next output adds to its choice."""
        return self._readers[index].push(output.text, last=output.finish is not None)

    def finish_reason(self, index: int, output: Output) -> str:
        """OpenAI's word for how a choice ended."""
        assert output.finish is not None
        reader = self._readers[index]
        if output.finish is FinishReason.STOP and reader.num_calls and not reader.in_call:
            return "tool_calls"
        return output.finish.value
