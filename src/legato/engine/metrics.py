"""Prometheus metrics under the names that dashboards and routers for vLLM read; ours are `legato:`. Updated per step.

Times are seconds. Time to first token runs from arrival to the first non-empty text (or to the end, where a choice
has no text); inter-token latency is the gap between two outputs of a choice; both count per choice.
"""

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from legato.core.types import FinishReason, Request
from legato.engine.outputs import Output
from legato.scheduler.stats import SchedulerStats

__all__ = ["Metrics"]

_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_E2E = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_CHOICES = (1, 2, 5, 10, 20)
_LABELS = ("model_name", "engine")


class _Live:
    """Times of a live choice."""

    __slots__ = ("first_s", "first_text_s", "last_s", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.first_s: float | None = None
        self.first_text_s: float | None = None
        self.last_s = 0.0


class Metrics:
    """The engine's metrics, in a registry of its own."""

    def __init__(self, model_name: str, max_model_len: int) -> None:
        self.registry = CollectorRegistry()
        self._labels = (model_name, "0")
        self._live: dict[tuple[str, int], _Live] = {}
        self._seen = (0, 0, 0)  # preemptions, prefix queries and hits that are counted already
        lengths = _one_two_five(max_model_len)
        self._running = self._gauge("num_requests_running", "Sequences in the running batch.")
        self._waiting = self._gauge("num_requests_waiting", "Sequences that wait to run.")
        self._kv_usage = self._gauge("kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1.")
        self._kv_waste = self._gauge("kv_cache_waste_perc", "Unused share of the slots in used blocks.", "legato")
        self._preemptions = self._counter("num_preemptions", "Preemptions.")
        self._prefix_queries = self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._prefix_hits = self._counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens processed.")
        self._generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self._success = Counter(
            "vllm:request_success", "Ended choices.", (*_LABELS, "finished_reason"), registry=self.registry
        )
        self._ends = {reason: self._success.labels(*self._labels, reason.value) for reason in FinishReason}
        self._ttft = self._histogram("time_to_first_token_seconds", "Time to first token.", _TTFT)
        self._itl = self._histogram("inter_token_latency_seconds", "Gap between outputs.", _ITL)
        self._tpot = self._histogram("request_time_per_output_token_seconds", "Decode time per output token.", _ITL)
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to end.", _E2E)
        self._iteration = self._histogram("iteration_tokens_total", "Tokens of a step's outputs.", _ITERATION)
        self._prompt_length = self._histogram("request_prompt_tokens", "Prompt tokens per request.", lengths)
        self._output_length = self._histogram("request_generation_tokens", "Tokens generated per choice.", lengths)
        self._max_tokens = self._histogram("request_params_max_tokens", "max_tokens of requests.", lengths)
        self._choices = self._histogram("request_params_n", "n of requests.", _CHOICES)

    def text(self) -> bytes:
        """The exposition, in Prometheus' text format 0.0.4."""
        return generate_latest(self.registry)

    def add(self, request: Request) -> None:
        """A request was handed to the scheduler."""
        for choice in range(request.params.n):
            self._live[request.request_id, choice] = _Live(request)

    def update(self, stats: SchedulerStats, outputs: Iterable[Output]) -> None:
        """Take over the scheduler's state and the outputs of one step."""
        self._running.set(stats.running)
        self._waiting.set(stats.waiting)
        self._kv_usage.set(stats.kv_usage)
        self._kv_waste.set(stats.kv_waste)
        counts = (stats.preemptions, stats.prefix_queries, stats.prefix_hits)
        counters = (self._preemptions, self._prefix_queries, self._prefix_hits)
        for counter, count, seen in zip(counters, counts, self._seen, strict=True):
            counter.inc(count - seen)
        self._seen = counts
        now = time.monotonic()
        tokens = 0
        for output in outputs:
            tokens += len(output.tokens)
            live = self._live.get((output.request_id, output.choice))
            if live is not None:
                self._observe(live, output, now)
        if tokens:
            self._generation_tokens.inc(tokens)
            self._iteration.observe(tokens)

    def _observe(self, live: _Live, output: Output, now: float) -> None:
        if live.first_s is None:
            live.first_s = now
            if output.choice == 0:
                self._prompt_tokens.inc(len(live.request.prompt))
        else:
            self._itl.observe(now - live.last_s)
        live.last_s = now
        if live.first_text_s is None and (output.text or output.finish is not None):
            live.first_text_s = now
            self._ttft.observe(now - live.request.arrival_s)
        if output.finish is not None:
            del self._live[output.request_id, output.choice]
            self._observe_end(live, output, output.finish, now)

    def _observe_end(self, live: _Live, output: Output, finish: FinishReason, now: float) -> None:
        self._ends[finish].inc()
        self._e2e.observe(now - live.request.arrival_s)
        self._output_length.observe(output.num_tokens)
        if output.num_tokens > 1 and live.first_s is not None:
            self._tpot.observe((now - live.first_s) / (output.num_tokens - 1))
        if output.choice == 0:
            params = live.request.params
            self._prompt_length.observe(len(live.request.prompt))
            self._max_tokens.observe(params.max_tokens or 0)
            self._choices.observe(params.n)

    def _gauge(self, name: str, help: str, prefix: str = "vllm") -> Gauge:
        return Gauge(f"{prefix}:{name}", help, _LABELS, registry=self.registry).labels(*self._labels)

    def _counter(self, name: str, help: str) -> Counter:
        return Counter(f"vllm:{name}", help, _LABELS, registry=self.registry).labels(*self._labels)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(f"vllm:{name}", help, _LABELS, registry=self.registry, buckets=buckets)
        return family.labels(*self._labels)


def _one_two_five(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, ... up to the limit."""
    buckets = []
    scale = 1
    while scale <= limit:
        buckets += [scale * step for step in (1, 2, 5) if scale * step <= limit]
        scale *= 10
    return tuple(float(bucket) for bucket in buckets)
