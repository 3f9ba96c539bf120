"""One HTTP request's way through the engine: submit, collect or stream, abort when the client goes away."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from legato.core.errors import EngineError, LegatoError, QueueFullError, RequestError
from legato.core.types import FinishReason, Request
from legato.engine.client import EngineClient, OutputStream
from legato.engine.inputs import Echo
from legato.engine.outputs import Output
from legato.protocol.answers import Message
from legato.protocol.errors import error_frame
from legato.protocol.logprobs import ScoredToken
from legato.protocol.responses import Reply, Style
from legato.server.answers import Answers, NewReader, ToolReadings, plain_reader
from legato.server.context import CURRENT, Origin
from legato.server.limits import Meter
from legato.server.pace import Pace
from legato.server.scores import Scores, aside
from legato.server.stream_writer import StreamWriter
from legato.server.tally import Tally
from legato.tokenizer.tokenizer import Tokenizer

__all__ = ["Generation"]

ASSUMED_ANSWER = 256  # tokens of a choice that may become longer, before it is known how long it is


@dataclass(frozen=True, slots=True)
class Generation:
    """Prompts of one HTTP request, and what their answer is to look like.

    Choices are numbered prompt by prompt: choice c of prompt i has index i * n + c.
    """

    client: EngineClient
    tokenizer: Tokenizer
    reply: Reply
    requests: Sequence[Request]
    style: Style
    echoes: Sequence[Echo] | None = None  # per prompt: what its answers begin with
    ignored: Sequence[str] = ()  # unknown fields of the request that were let pass
    new_reader: NewReader = plain_reader
    readings: ToolReadings | None = None  # counts what is looked through for tool calls

    def estimated_tokens(self) -> int:
        """Tokens of the prompts and, about, of the answers."""
        return sum(len(r.prompt) + r.params.n * min(r.params.max_tokens or 0, ASSUMED_ANSWER) for r in self.requests)

    async def whole(self, meter: Meter) -> bytes:
        """The body of the answer once all choices have ended; the error of one that failed (see `_failure`)."""
        tally = Tally(self.requests, self.style)
        scores = self._scores()
        answers = Answers(self.new_reader, tally.num_choices, self.style.stream, self.readings)
        messages = [Message(scores.echo(index)) for index in range(tally.num_choices)]
        scored: list[list[ScoredToken]] = [[] for _ in range(tally.num_choices)]
        tokens: list[list[int]] = [[] for _ in range(tally.num_choices)]
        of_prompt: list[list[dict[str, Any] | None] | None] = [None] * tally.num_choices
        choices = []
        async with self._submitted(tally, meter) as stream:
            async for outputs in stream:
                for output in outputs:
                    index = tally.count(output)
                    messages[index].add(answers.push(index, output))
                    tokens[index] += output.tokens
                    long = output.prompt_logprobs is not None
                    scored[index] += await aside(long, scores.push, index, output)
                    if long:
                        of_prompt[index] = await aside(long, scores.prompt_body, index, output.prompt_logprobs)
                    if (failure := self._failure(output)) is not None:
                        raise failure
                    if output.finish is not None:
                        reason = answers.finish_reason(index, output)
                        logprobs = await aside(scores.of_prompts, scores.body, scored[index])
                        choice = tally.choice(index, messages[index].text, tokens[index], output, reason, logprobs)
                        message = messages[index].body()
                        choices.append(replace(choice, message=message, prompt_logprobs=of_prompt[index]))
        choices.sort(key=lambda choice: choice.index)
        return await aside(scores.of_prompts, self.reply.whole, choices, tally.usage())

    async def frames(self, meter: Meter) -> AsyncGenerator[bytes, None]:
        """Server-sent events, as many at a time as one step gave. A failure before the first one is raised."""
        tally = Tally(self.requests, self.style)
        answers = Answers(self.new_reader, tally.num_choices, self.style.stream, self.readings)
        writer = StreamWriter(self.reply, self.style, self._scores(), answers, tally)
        async with self._submitted(tally, meter) as stream:
            async for frames in self._stream(stream, tally, writer):
                yield frames
        if tally.complete:  # the meter is closed by now: who has read the end may send the next request
            yield writer.end()

    async def _stream(self, stream: OutputStream, tally: Tally, writer: StreamWriter) -> AsyncGenerator[bytes, None]:
        """All events of the choices; after a failure what they still had to say, an error event, and no more."""
        pace = Pace(self.style.interval)
        anything_sent = False
        async for outputs in stream:
            out: list[bytes] = []
            for part in outputs:
                tally.count(part)
                output = pace.push(part)
                if output is None:
                    continue
                failure = self._failure(output)
                if failure is not None and not anything_sent:
                    raise failure
                for each in [output] if failure is None else [*pace.held(), output]:
                    out += await writer.events(each)
                if failure is not None:
                    yield b"".join(out) + error_frame(failure)
                    return
            if out:
                anything_sent = True
                yield b"".join(out)

    @asynccontextmanager
    async def _submitted(self, tally: Tally, meter: Meter) -> AsyncIterator[OutputStream]:
        """The outputs of the requests. When it ends, however that is, meter and telemetry are told."""
        origin = Origin(CURRENT.get(), self.reply, self.style.stream)
        try:
            async with self.client.submit(self.requests, origin) as stream, tally.metered(meter):
                yield stream
        finally:
            origin.answered.set_result(tally.reasons)

    def _scores(self) -> Scores:
        return Scores(self.requests, self.tokenizer, self.reply.chat, self.style, self.echoes)

    def _failure(self, output: Output) -> LegatoError | None:
        """RequestError where a field of the request is to blame, QueueFullError where the engine ended, EngineError.

        None where the choice goes on, or has ended well.
        """
        if output.finish not in (FinishReason.ERROR, FinishReason.ABORT):
            return None
        message = output.error or "the request was aborted"
        if self.client.failure is not None:
            return QueueFullError(message, status=503, retry_after_s=5)
        if output.error_param is not None:
            return RequestError(message, param=output.error_param)
        return EngineError(message)
