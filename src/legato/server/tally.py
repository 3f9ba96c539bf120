"""What one HTTP request has used so far, and how its choices ended."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from legato.core.answers import AnswerGate
from legato.core.types import Request
from legato.engine.outputs import Output
from legato.protocol.responses import Choice, Style, Usage
from legato.server.limits import Meter

__all__ = ["Tally"]


class Tally:
    """Counts tokens per choice, and names choices.

    reasons: how the choices of the answer ended, in its words, by request id and choice.
    """

    def __init__(self, requests: Sequence[Request], style: Style) -> None:
        self._requests = requests
        self._token_ids = style.token_ids
        self._n = requests[0].params.n
        self._number = {request.request_id: i for i, request in enumerate(requests)}
        self._tokens = [0] * self.num_choices
        self._cached = [0] * len(requests)
        self._pinned = [0] * len(requests)
        self._gates = [AnswerGate(request.reasoning) for request in requests for _ in range(self._n)]
        self.reasons: dict[tuple[str, int], str] = {}

    @property
    def complete(self) -> bool:
        """Whether all choices have ended well."""
        return len(self.reasons) == self.num_choices

    @property
    def num_choices(self) -> int:
        return len(self._requests) * self._n

    def index(self, output: Output) -> int:
        """Of the choice that an output is of."""
        return self._number[output.request_id] * self._n + output.choice

    def count(self, output: Output) -> int:
        """Take the counts of an output over; returns the index of its choice."""
        number, index = self._number[output.request_id], self.index(output)
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
        self.reasons[output.request_id, output.choice] = finish_reason
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
