"""What happens to requests, in vLLM's histograms and counters, and their timelines.

Times are seconds. Time to first token runs from arrival to the first non-empty text (or to the end of a choice that has
no text); inter-token latency is the gap between two outputs of a choice. Latencies count per choice, prompts once for
all choices of a request.
"""

import time
from collections.abc import Callable, Iterable

from legato.core.types import FinishReason, Request
from legato.engine.instruments import Instruments
from legato.engine.outputs import Output
from legato.engine.timeline import Timeline
from legato.scheduler.stats import Move

__all__ = ["RequestMetrics"]

_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_E2E = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_CHOICES = (1, 2, 5, 10, 20)
_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
_SOURCES = (("local_compute",), ("local_cache_hit",), ("external_kv_transfer",))


class _Request:
    """A live request: what its choices have in common."""

    __slots__ = ("error", "finishes", "first_s", "lengths", "num_cached", "preemptions", "request", "scheduled_s")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.lengths: dict[int, int] = {}  # billed tokens of the choices that have ended
        self.finishes: dict[int, FinishReason] = {}
        self.scheduled_s: float | None = None
        self.first_s: float | None = None
        self.num_cached = 0
        self.preemptions = 0
        self.error: str | None = None

    def timeline(self, now: float) -> Timeline:
        choices = range(self.request.params.n)
        return Timeline(
            request=self.request,
            scheduled_s=self.scheduled_s,
            first_token_s=self.first_s,
            end_s=now,
            num_tokens=tuple(self.lengths[choice] for choice in choices),
            finishes=tuple(self.finishes[choice] for choice in choices),
            num_cached=self.num_cached,
            num_preemptions=self.preemptions,
            error=self.error,
        )


class _Choice:
    """Times of a live choice."""

    __slots__ = ("first_s", "last_s", "owner", "preemptions", "scheduled_s", "shown")

    def __init__(self, owner: _Request) -> None:
        self.owner = owner
        self.scheduled_s: float | None = None
        self.first_s: float | None = None  # first token
        self.last_s = 0.0
        self.shown = False  # its first text was observed
        self.preemptions = 0


class RequestMetrics:
    """Follows every request from `add` to its last output. Used by the engine thread only.

    on_end: called with the timeline of each request that has ended. It must not block.
    """

    def __init__(self, instruments: Instruments, max_model_len: int) -> None:
        self.on_end: Callable[[Timeline], None] | None = None
        self._live: dict[tuple[str, int], _Choice] = {}
        self._count(instruments)
        self._measure(instruments)
        self._size(instruments, _one_two_five(max_model_len))

    def _count(self, make: Instruments) -> None:
        self._prompt_tokens = make.counter("vllm:prompt_tokens", "Prompt tokens processed; once for all choices.")
        self._by_source = make.counter(
            "vllm:prompt_tokens_by_source", "Prompt tokens by where their KV came from.", ("source",), _SOURCES
        )
        self._cached = make.counter("vllm:prompt_tokens_cached", "Prompt tokens that a cache held.")
        self._cached_by_source = make.counter(
            "vllm:prompt_tokens_cached_by_source",
            "The same by where it lay: in the pool (device), or in the file of --kv-offloading-size (disk).",
            ("source",),
            (("device",), ("disk",)),
        )
        self._generation_tokens = make.counter("vllm:generation_tokens", "Tokens generated, as billed.")
        reasons = [(reason.value,) for reason in FinishReason]
        self._ends = make.counter("vllm:request_success", "Choices that ended.", ("finished_reason",), reasons)

    def _measure(self, make: Instruments) -> None:
        self._ttft = make.histogram("vllm:time_to_first_token_seconds", "Arrival to first text.", _TTFT)
        self._itl = make.histogram("vllm:inter_token_latency_seconds", "Between two outputs of a choice.", _ITL)
        self._tpot = make.histogram(
            "vllm:request_time_per_output_token_seconds", "Decode time per token after the first.", _ITL
        )
        self._e2e = make.histogram("vllm:e2e_request_latency_seconds", "Arrival to end.", _E2E)
        self._queue = make.histogram("vllm:request_queue_time_seconds", "Arrival to first place in the batch.", _E2E)
        self._inference = make.histogram("vllm:request_inference_time_seconds", "First place to end.", _E2E)
        self._prefill = make.histogram("vllm:request_prefill_time_seconds", "First place to first token.", _E2E)
        self._decode = make.histogram("vllm:request_decode_time_seconds", "First token to last.", _E2E)

    def _size(self, make: Instruments, lengths: tuple[float, ...]) -> None:
        self._preempted = make.histogram("vllm:request_num_preemptions", "Preemptions per choice.", _PREEMPTIONS)
        self._output_length = make.histogram("vllm:request_generation_tokens", "Tokens per choice.", lengths)
        self._longest = make.histogram(
            "vllm:request_max_num_generation_tokens", "Tokens of a request's longest choice.", lengths
        )
        self._prompt_length = make.histogram("vllm:request_prompt_tokens", "Prompt tokens per request.", lengths)
        self._computed = make.histogram(
            "vllm:request_prefill_kv_computed_tokens", "Prompt tokens per request that no cache held.", lengths
        )
        self._max_tokens = make.histogram("vllm:request_params_max_tokens", "max_tokens per request.", lengths)
        self._choices = make.histogram("vllm:request_params_n", "n per request.", _CHOICES)

    @property
    def num_live(self) -> int:
        """Choices that have not ended."""
        return len(self._live)

    def add(self, request: Request) -> None:
        """A request was handed to the scheduler."""
        owner = _Request(request)
        for choice in range(request.params.n):
            self._live[request.request_id, choice] = _Choice(owner)

    def moved(self, moves: Iterable[Move]) -> None:
        """Choices entered the batch or were put out of it."""
        for move in moves:
            choice = self._live.get((move.request_id, move.choice))
            if choice is None:
                continue
            if not move.entered:
                choice.preemptions += 1
                choice.owner.preemptions += 1
            elif choice.scheduled_s is None:
                choice.scheduled_s = move.at_s
                if choice.owner.scheduled_s is None:
                    choice.owner.scheduled_s = move.at_s

    def came(self, outputs: Iterable[Output]) -> None:
        """Outputs of a step."""
        now = time.monotonic()
        tokens = 0
        for output in outputs:
            choice = self._live.get((output.request_id, output.choice))
            if choice is None:
                continue
            if output.tokens or output.prompt_logprobs is not None:  # a prompt may be scored and no more
                tokens += len(output.tokens)
                self._observe_tokens(choice, output, now)
            if not choice.shown and (output.text or output.finish in (FinishReason.STOP, FinishReason.LENGTH)):
                choice.shown = True
                self._ttft.observe(now - choice.owner.request.arrival_s)
            if output.finish is not None:
                del self._live[output.request_id, output.choice]
                self._observe_end(choice, output, output.finish, now)
        if tokens:
            self._generation_tokens.add(tokens)

    def _observe_tokens(self, choice: _Choice, output: Output, now: float) -> None:
        if choice.first_s is not None:
            self._itl.observe(now - choice.last_s)
        else:
            owner = choice.owner
            choice.first_s = now
            if owner.first_s is None:
                owner.first_s = now
            if output.choice == 0:  # the other choices share its prompt
                owner.num_cached = output.num_cached
                self._count_prompt(len(owner.request.prompt), output.num_cached, output.num_restored)
        choice.last_s = now

    def _count_prompt(self, length: int, cached: int, restored: int) -> None:
        self._prompt_tokens.add(length)
        self._by_source.add(length - cached, "local_compute")
        self._by_source.add(cached, "local_cache_hit")
        self._cached.add(cached)
        self._cached_by_source.add(cached - restored, "device")
        self._cached_by_source.add(restored, "disk")

    def _observe_end(self, choice: _Choice, output: Output, finish: FinishReason, now: float) -> None:
        owner = choice.owner
        self._ends.add(1, finish.value)
        self._e2e.observe(now - owner.request.arrival_s)
        self._output_length.observe(output.num_tokens)
        self._preempted.observe(choice.preemptions)
        if choice.scheduled_s is not None:
            self._queue.observe(choice.scheduled_s - owner.request.arrival_s)
            self._inference.observe(now - choice.scheduled_s)
            if choice.first_s is not None:
                self._prefill.observe(choice.first_s - choice.scheduled_s)
                self._decode.observe(choice.last_s - choice.first_s)
                if choice.last_s > choice.first_s:  # not all at once
                    self._tpot.observe((choice.last_s - choice.first_s) / (output.num_tokens - 1))
        owner.lengths[output.choice] = output.num_tokens
        owner.finishes[output.choice] = finish
        owner.error = owner.error or output.error
        if len(owner.lengths) == owner.request.params.n:
            self._observe_request(owner, now)

    def _observe_request(self, owner: _Request, now: float) -> None:
        """All choices have ended."""
        params = owner.request.params
        self._prompt_length.observe(len(owner.request.prompt))
        self._max_tokens.observe(params.max_tokens or 0)
        self._choices.observe(params.n)
        self._longest.observe(max(owner.lengths.values()))
        if owner.first_s is not None:
            self._computed.observe(len(owner.request.prompt) - owner.num_cached)
        if self.on_end is not None:
            self.on_end(owner.timeline(now))


def _one_two_five(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, ... up to the limit."""
    buckets = []
    scale = 1
    while scale <= limit:
        buckets += [scale * step for step in (1, 2, 5) if scale * step <= limit]
        scale *= 10
    return tuple(float(bucket) for bucket in buckets)
