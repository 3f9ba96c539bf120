"""One HTTP request's way through the engine: submit, collect or stream, abort when the client goes away."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from legato.core.answers import AnswerGate, Delta
from legato.core.errors import EngineError, LegatoError, QueueFullError, RequestError
from legato.core.types import BeamOptions, FinishReason, Request
from legato.engine.beam_stream import BeamStream
from legato.engine.client import EngineClient, OutputStream
from legato.engine.inputs import Echo
from legato.engine.outputs import Output
from legato.protocol.answers import Message
from legato.protocol.errors import error_frame
from legato.protocol.logprobs import ScoredToken
from legato.protocol.responses import DONE, Choice, Frames, Reply, Style, Usage
from legato.server.answers import Answers, NewReader, joined, plain_reader
from legato.server.context import CURRENT, Origin
from legato.server.limits import Meter
from legato.server.pace import Pace
from legato.server.scores import Scores, aside
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
    beam: BeamOptions | None = None  # the choices are found by beam search
    ignored: Sequence[str] = ()  # unknown fields of the request that were let pass
    new_reader: NewReader = plain_reader

    def estimated_tokens(self) -> int:
        """Tokens of the prompts and, about, of the answers."""
        return sum(len(r.prompt) + r.params.n * min(r.params.max_tokens or 0, ASSUMED_ANSWER) for r in self.requests)

    async def whole(self, meter: Meter) -> bytes:
        """The body of the answer once all choices have ended; the error of one that failed (see `_failure`)."""
        tally = _Tally(self.requests, self.style)
        scores = self._scores()
        answers = Answers(self.new_reader, tally.num_choices)
        messages = [Message(scores.echo(index)) for index in range(tally.num_choices)]
        scored: list[list[ScoredToken]] = [[] for _ in range(tally.num_choices)]
        tokens: list[list[int]] = [[] for _ in range(tally.num_choices)]
        of_prompt: list[list[dict[str, Any] | None] | None] = [None] * tally.num_choices
        choices = []
        async with self._submit() as stream, tally.metered(meter):
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
        tally = _Tally(self.requests, self.style)
        async with self._submit() as stream, tally.metered(meter):
            events = Frames(self.reply, self.style.include_usage)
            async for frames in self._stream(stream, tally, events):
                yield frames
        if tally.complete:  # the meter is closed by now: who has read the end may send the next request
            yield (events.usage(tally.usage()) if self.style.include_usage else b"") + DONE

    async def _stream(
        self, stream: OutputStream | BeamStream, tally: "_Tally", frames: Frames
    ) -> AsyncGenerator[bytes, None]:
        """All events of the choices, or an error event and no more."""
        scores = self._scores()
        answers = Answers(self.new_reader, tally.num_choices)
        pace = Pace(self.style.interval)
        begun = [False] * tally.num_choices
        anything_sent = False
        async for outputs in stream:
            out: list[bytes] = []
            for part in outputs:
                index = tally.count(part)
                output = pace.push(part)
                if output is None:
                    continue
                if (failure := self._failure(output)) is not None:
                    if not anything_sent:
                        raise failure
                    yield b"".join(out) + error_frame(failure)
                    return
                used = tally.usage() if self.style.continuous_usage else None
                echo = ""
                if not begun[index]:
                    begun[index] = True
                    if self.reply.chat or self.style.token_ids:
                        out.append(frames.begin(index, tally.prompt_token_ids(index), used))
                    echo = scores.echo(index)
                logprobs = await aside(output.prompt_logprobs is not None, scores.next_body, index, output)
                token_ids = output.tokens if self.style.token_ids else None
                deltas = joined(echo, answers.push(index, output))
                rest = deltas.pop().content if output.finish and deltas and deltas[-1].content else ""
                for delta in deltas:
                    out.append(frames.delta(index, delta, logprobs, token_ids, used))
                    logprobs, token_ids = None, token_ids and ()  # they come with the first piece of their output
                if output.finish is not None:
                    reason = answers.finish_reason(index, output)
                    choice = tally.choice(index, rest, token_ids or (), output, reason, logprobs)
                    out.append(frames.finish(choice, used))
                elif not deltas and (logprobs is not None or token_ids):
                    out.append(frames.delta(index, Delta(), logprobs, token_ids, used))
            if out:
                anything_sent = True
                yield b"".join(out)

    def _submit(self) -> OutputStream | BeamStream:
        if self.beam is not None:  # its many requests of one token are nothing to tell of
            return BeamStream(self.client.submit, self.requests, self.beam, self.tokenizer)
        return self.client.submit(self.requests, Origin(CURRENT.get(), self.reply, self.style.stream))

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


class _Tally:
    """Counts tokens per choice, and names choices."""

    def __init__(self, requests: Sequence[Request], style: Style) -> None:
        self._requests = requests
        self._token_ids = style.token_ids
        self._n = requests[0].params.n
        self._number = {request.request_id: i for i, request in enumerate(requests)}
        self._tokens = [0] * self.num_choices
        self._cached = [0] * len(requests)
        self._pinned = [0] * len(requests)
        self._gates = [AnswerGate(request.reasoning) for request in requests for _ in range(self._n)]
        self._ended = 0

    @property
    def complete(self) -> bool:
        """Whether all choices have ended well."""
        return self._ended == self.num_choices

    @property
    def num_choices(self) -> int:
        return len(self._requests) * self._n

    def count(self, output: Output) -> int:
        """Take the counts of an output over; returns the index of its choice."""
        number = self._number[output.request_id]
        index = number * self._n + output.choice
        self._tokens[index] = output.num_tokens
        if not self._gates[index].answering:
            for token in output.tokens:
                self._gates[index].push(token)
        if output.choice == 0:  # the others may find what this one computed, and the prompt counts once
            self._cached[number] = output.num_cached
            self._pinned[number] = output.num_pinned
        return index

    @asynccontextmanager
    async def metered(self, meter: Meter) -> AsyncIterator[None]:
        """Tells the meter what was used, and closes it, however it ends."""
        try:
            yield
        finally:
            usage = self.usage()
            meter.used = usage.prompt_tokens + usage.completion_tokens
            meter.close()

    def prompt_token_ids(self, index: int) -> Sequence[int] | None:
        """The prompt of a choice; None where nobody asked."""
        return self._requests[index // self._n].prompt if self._token_ids else None

    def choice(
        self,
        index: int,
        text: str,
        tokens: Sequence[int],
        output: Output,
        finish_reason: str,
        logprobs: dict[str, Any] | None,
    ) -> Choice:
        """A choice that ends with `output`, from the text and tokens that are to be told now."""
        self._ended += 1
        seed = self._requests[index // self._n].params.seed
        assert seed is not None
        return Choice(
            index,
            text,
            finish_reason,
            output.stop,
            seed,
            logprobs,
            token_ids=tokens if self._token_ids else None,
            prompt_token_ids=self.prompt_token_ids(index),
        )

    def usage(self) -> Usage:
        prompt = sum(len(request.prompt) for request in self._requests)
        hinted = any(request.breakpoints for request in self._requests)
        thinks = any(request.reasoning is not None for request in self._requests)
        return Usage(
            prompt,
            sum(self._tokens),
            sum(self._cached),
            sum(self._pinned) if hinted else None,
            sum(gate.num_reasoning for gate in self._gates) if thinks else None,
        )
