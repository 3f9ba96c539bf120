"""The answers of all choices of one HTTP request: what their texts mean, and how they end."""

from collections.abc import Callable, Sequence

from legato.chat.answer import AnswerReader
from legato.core.answers import Delta
from legato.core.types import FinishReason
from legato.engine.instruments import Instruments
from legato.engine.outputs import Output

__all__ = ["Answers", "NewReader", "ToolReadings", "joined", "plain_reader"]

NewReader = Callable[[], AnswerReader]


def plain_reader() -> AnswerReader:
    """Of a choice whose text is all content."""
    return AnswerReader(None, None, str, show_reasoning=True)


def joined(echo: str, deltas: Sequence[Delta]) -> list[Delta]:
    """Deltas behind the text that a choice begins with, in one piece where both are content."""
    if echo and deltas and deltas[0].content:
        return [Delta(content=echo + deltas[0].content), *deltas[1:]]
    return [Delta(content=echo), *deltas] if echo else list(deltas)


class ToolReadings:
    """How often answers were looked through for tool calls, under vLLM's name. Counted in the event loop."""

    def __init__(self, instruments: Instruments) -> None:
        modes, outcomes = ("streaming", "non_streaming"), ("tool_call", "no_tool_call")
        self._counter = instruments.counter(
            "vllm:tool_call_parser_invocations",
            "Answers looked through for tool calls: once per choice, or once per chunk of a stream.",
            ("mode", "outcome", "request_type"),
            [(mode, outcome, "chat_completions") for mode in modes for outcome in outcomes],
        )

    def add(self, *, stream: bool, called: bool) -> None:
        mode, outcome = "streaming" if stream else "non_streaming", "tool_call" if called else "no_tool_call"
        self._counter.add(1, mode, outcome, "chat_completions")


class Answers:
    """One reader for each choice. stream: whether what each output adds is told at once."""

    def __init__(self, new_reader: NewReader, num_choices: int, stream: bool, readings: ToolReadings | None) -> None:
        self._readers = [new_reader() for _ in range(num_choices)]
        self._stream = stream
        self._readings = readings

    def push(self, index: int, output: Output) -> Sequence[Delta]:
        """What the next output adds to its choice."""
        reader, last = self._readers[index], output.finish is not None
        deltas = reader.push(output.text, last=last)
        if self._readings is not None and reader.reads_calls and (self._stream or last):
            called = any(delta.call for delta in deltas) if self._stream else reader.num_calls > 0
            self._readings.add(stream=self._stream, called=called)
        return deltas

    def finish_reason(self, index: int, output: Output) -> str:
        """OpenAI's word for how a choice ended."""
        assert output.finish is not None
        reader = self._readers[index]
        if output.finish is FinishReason.STOP and reader.num_calls and not reader.in_call:
            return "tool_calls"
        return output.finish.value
