"""Token events to text: incremental decoding, stop strings, exact counts."""

from collections.abc import Callable, Iterable, Sequence

from legato.core.answers import AnswerGate
from legato.core.types import FinishReason, Request, TokenEvent
from legato.engine.outputs import Output
from legato.tokenizer.stop import StopFinder
from legato.tokenizer.tokenizer import Tokenizer

__all__ = ["Renderer"]


class _Choice:
    """A live choice: its decoder, its stop strings, and how far it is."""

    __slots__ = ("decoder", "gate", "num_cached", "num_pinned", "num_restored", "num_tokens", "request", "stops")

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        params = request.params
        self.request = request
        self.decoder = tokenizer.decoder(params.skip_special_tokens, continuation=True, shown=request.shown_token_ids)
        self.stops = StopFinder(params.stop, params.include_stop_str_in_output) if params.stop else None
        self.gate = AnswerGate(request.reasoning)
        self.num_tokens = 0
        self.num_cached = 0
        self.num_restored = 0
        self.num_pinned = 0


class Renderer:
    """Turns the scheduler's events into outputs. Used by the engine thread only.

    A stop string found in the text ends the choice here and is told to the scheduler with `finish`; what the
    scheduler still says of that choice is dropped, so that a token computed meanwhile is neither shown nor billed.
    """

    def __init__(self, tokenizer: Tokenizer, finish: Callable[[str, int], None]) -> None:
        self._tokenizer = tokenizer
        self._finish = finish
        self._live: dict[tuple[str, int], _Choice] = {}

    def add(self, request: Request) -> None:
        """A request was handed to the scheduler; events for it may follow."""
        for choice in range(request.params.n):
            self._live[request.request_id, choice] = _Choice(request, self._tokenizer)

    def render(self, events: Iterable[TokenEvent]) -> list[Output]:
        """The outputs of these events, in their order."""
        outputs = []
        for event in events:
            choice = self._live.get((event.request_id, event.choice))
            if choice is None:
                continue
            output = self._output(choice, event)
            if output.finish is not None:
                del self._live[event.request_id, event.choice]
                if event.finish is None:
                    self._finish(event.request_id, event.choice)
            outputs.append(output)
        return outputs

    def fail(self, message: str) -> list[Output]:
        """End every live choice with an error."""
        return self.render(
            TokenEvent(request_id, index, (), finish=FinishReason.ERROR, error=message)
            for request_id, index in tuple(self._live)
        )

    def _output(self, choice: _Choice, event: TokenEvent) -> Output:
        choice.num_cached = max(choice.num_cached, event.num_cached)
        choice.num_restored = max(choice.num_restored, event.num_restored)
        choice.num_pinned = max(choice.num_pinned, event.num_pinned)
        text, used, stop_string = self._text(choice, event)
        choice.num_tokens += used
        stop: str | int | None = stop_string
        if stop_string is None and event.stop_token not in choice.request.end_token_ids:
            stop = event.stop_token
        return Output(
            request_id=event.request_id,
            choice=event.choice,
            text=text,
            tokens=event.tokens[:used],
            num_tokens=choice.num_tokens,
            logprobs=event.logprobs[:used],
            top_logprobs=event.top_logprobs[:used],
            finish=event.finish if stop_string is None else FinishReason.STOP,
            stop=stop,
            error=event.error,
            error_param=event.error_param,
            num_cached=choice.num_cached,
            prompt_logprobs=event.prompt_logprobs,
            num_restored=choice.num_restored,
            num_pinned=choice.num_pinned,
        )

    def _text(self, choice: _Choice, event: TokenEvent) -> tuple[str, int, str | None]:
        """The text these tokens give, how many of them count, and the stop string that was found."""
        shown: Sequence[int] = event.tokens
        if event.stop_token is not None and not choice.request.params.include_stop_str_in_output:
            shown = shown[:-1]
        if choice.stops is None:
            text = choice.decoder.push(shown)
            return (text if event.finish is None else text + choice.decoder.finish()), len(event.tokens), None
        return self._text_before_stop(choice, choice.stops, event, shown)

    def _text_before_stop(
        self, choice: _Choice, stops: StopFinder, event: TokenEvent, shown: Sequence[int]
    ) -> tuple[str, int, str | None]:
        """One token at a time: the one that completes a stop string is the last that counts."""
        texts = []
        for i, token in enumerate(shown):
            piece = choice.decoder.push((token,))
            in_answer = choice.gate.push(token)
            if not in_answer or choice.num_tokens + i < choice.request.params.min_tokens:
                texts.append(piece)  # stop strings do not count yet
                continue
            text, stop = stops.push(piece)
            texts.append(text)
            if stop is not None:
                return "".join(texts), i + 1, stop
        if event.finish is None:
            return "".join(texts), len(event.tokens), None
        text, stop = stops.push(choice.decoder.finish())
        return "".join((*texts, text, stops.finish())), len(event.tokens), stop
