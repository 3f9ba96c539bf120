"""Beam search on the engine: each round asks for one token of every live beam, as requests of their own.

Beams share their beginnings through the prefix cache, so a round computes few tokens of each. Searches over several
prompts go in step.
"""

import secrets
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import replace
from types import TracebackType

from legato.core.types import BeamOptions, FinishReason, Request, SamplingParams
from legato.engine.beam import BeamSearch, Finished
from legato.engine.client import OutputStream
from legato.engine.outputs import Output
from legato.tokenizer.tokenizer import Tokenizer

__all__ = ["BeamStream"]

Submit = Callable[[Sequence[Request]], OutputStream]


class BeamStream:
    """The answers to some requests, each output a whole choice: nothing of it is certain earlier.

    It is read as an OutputStream is. The choices of a request are its best beams, in order. A beam that fails ends all
    with an output of its error.
    """

    def __init__(self, submit: Submit, requests: Sequence[Request], options: BeamOptions, tokenizer: Tokenizer) -> None:
        self._submit = submit
        self._requests = requests
        self._searches = [_search(request, options) for request in requests]
        self._tokenizer = tokenizer
        self._cached = [0] * len(requests)
        self._pinned = [0] * len(requests)
        self._outputs = self._run()

    def __aiter__(self) -> AsyncIterator[list[Output]]:
        return self._outputs

    async def __aenter__(self) -> "BeamStream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._outputs.aclose()  # aborts a round that still runs

    async def _run(self) -> AsyncGenerator[list[Output], None]:
        while open_ones := [i for i, search in enumerate(self._searches) if not search.done]:
            failed = await self._round(open_ones)
            if failed is not None:
                yield [failed]
                return
            done = [i for i in open_ones if self._searches[i].done]
            if done:
                yield [output for i in done for output in self._choices(i)]

    async def _round(self, numbers: Sequence[int]) -> Output | None:
        """One token for every live beam of these searches; the output of a beam that failed."""
        asked = [(i, [self._continued(i, beam.tokens) for beam in self._searches[i].live]) for i in numbers]
        found: dict[str, Output] = {}
        async with self._submit([request for _, requests in asked for request in requests]) as stream:
            async for outputs in stream:
                for output in outputs:
                    if output.finish in (FinishReason.ERROR, FinishReason.ABORT):
                        return replace(output, request_id=self._requests[0].request_id)
                    found[output.request_id] = output
        for i, requests in asked:
            if not self._searches[i].live[0].tokens:
                first = found[requests[0].request_id]
                self._cached[i], self._pinned[i] = first.num_cached, first.num_pinned
            self._searches[i].advance([found[request.request_id].top_logprobs[0] for request in requests])
        return None

    def _continued(self, number: int, tokens: Sequence[int]) -> Request:
        """A request for the token that follows, and for the best ones in its place."""
        request = self._requests[number]
        count = min(self._searches[number].num_candidates, self._tokenizer.vocab_size)
        return replace(
            request,
            request_id=secrets.token_hex(12),
            prompt=array("i", [*request.prompt, *tokens]),
            params=SamplingParams(temperature=0.0, max_tokens=1, seed=0, logprobs=count),
            end_token_ids=frozenset(),
        )

    def _choices(self, number: int) -> list[Output]:
        best = self._searches[number].best()
        return [self._choice(number, choice, finished) for choice, finished in enumerate(best)]

    def _choice(self, number: int, choice: int, finished: Finished) -> Output:
        request, beam = self._requests[number], finished.beam
        params = request.params
        hidden = finished.ended and not params.include_stop_str_in_output
        decoder = self._tokenizer.decoder(params.skip_special_tokens, continuation=True, shown=request.shown_token_ids)
        text = decoder.push(beam.tokens[:-1] if hidden else beam.tokens) + decoder.finish()
        last = beam.tokens[-1]
        return Output(
            request_id=request.request_id,
            choice=choice,
            text=text,
            tokens=beam.tokens,
            num_tokens=len(beam.tokens),
            logprobs=() if params.logprobs is None else beam.logprobs,
            top_logprobs=tuple(tuple(top[: params.logprobs]) for top in beam.tops) if params.logprobs else (),
            finish=FinishReason.STOP if finished.ended else FinishReason.LENGTH,
            stop=last if finished.ended and last not in request.end_token_ids else None,
            num_cached=self._cached[number],
            num_pinned=self._pinned[number],
        )


def _search(request: Request, options: BeamOptions) -> BeamSearch:
    params = request.params
    assert params.max_tokens is not None
    ends = request.end_token_ids.union(params.stop_token_ids)
    return BeamSearch(options, ends, max_tokens=params.max_tokens, min_tokens=params.min_tokens)
