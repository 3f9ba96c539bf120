"""What a simulation comes to: latencies, rates and the use of memory, in bounded space.

TTFT    first token - arrival              E2EL   last token - arrival
TPOT    (E2EL - TTFT) / (output tokens - 1), per request with more than one token
ITL     gaps between tokens of a request, pooled over all; counted in classes of 1 %
goodput requests per second that meet every bound (TPOT of a one-token answer is 0)
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from legato.bench.figures import Summary, summarize
from legato.core.types import FinishReason, TokenEvent
from legato.scheduler.stats import SchedulerStats

__all__ = ["Gaps", "Outcome"]

_CLASSES = 1 / math.log(1.01)


def _class_of(seconds: float) -> int:
    return math.ceil(math.log(max(seconds, 1e-9)) * _CLASSES)


class Gaps:
    """A distribution of seconds, kept as counts in classes 1 % wide."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0.0
        self._classes: Counter[int] = Counter()

    def add(self, seconds: float, times: int = 1) -> None:
        self.count += times
        self._sum += seconds * times
        self._classes[_class_of(seconds)] += times

    def summary(self) -> Summary | None:
        """In milliseconds; each percentile is the upper end of its class. None of no values."""
        if not self.count:
            return None
        p50, p90, p99 = (1000 * self._percentile(share) for share in (0.5, 0.9, 0.99))
        return Summary(1000 * self._sum / self.count, p50, p90, p99)

    def _percentile(self, share: float) -> float:
        classes = sorted(self._classes)
        counts = list(accumulate(self._classes[index] for index in classes))
        return math.exp(classes[bisect_left(counts, share * self.count)] / _CLASSES)


class _Live:
    """A request that has come and not ended. Seconds; first_s is below 0 until there is a token."""

    __slots__ = ("arrival_s", "first_s", "last_s", "tokens")

    def __init__(self, arrival_s: float) -> None:
        self.arrival_s = arrival_s
        self.first_s = self.last_s = -1.0
        self.tokens = 0


@dataclass(slots=True)
class _Use:
    """Sums over time of what the replicas' schedulers say."""

    seconds: float = 0.0
    running: float = 0.0
    kv_usage: float = 0.0
    kv_waste: float = 0.0
    most_running: int = 0

    def add(self, stats: SchedulerStats, seconds: float) -> None:
        self.seconds += seconds
        self.running += stats.running * seconds
        self.kv_usage += stats.kv_usage * seconds
        self.kv_waste += stats.kv_waste * seconds
        self.most_running = max(self.most_running, stats.running)


class Outcome:
    """Takes in arrivals and steps of any number of replicas. slo: bounds in milliseconds by ttft, tpot, e2el."""

    def __init__(self, slo: Mapping[str, float]) -> None:
        self._slo = slo
        self._live: dict[str, _Live] = {}
        self._use = _Use()
        self._ms = {name: array("d") for name in ("ttft", "tpot", "e2el")}
        self.itl = Gaps()
        self.completed = self.met = self.prompt_tokens = self.output_tokens = self.cached_tokens = 0
        self.refused: Counter[str] = Counter()
        self.end_s = 0.0
        self.preemptions = self.steps = 0

    @property
    def num_live(self) -> int:
        return len(self._live)

    def arrived(self, request_id: str, at_s: float, prompt_tokens: int) -> None:
        self._live[request_id] = _Live(at_s)
        self.prompt_tokens += prompt_tokens

    def on_steps(self, begin_s: float, ends_s: Sequence[float], events: Iterable[TokenEvent]) -> list[str]:
        """Steps of one replica ended at these times. Returns the ids of the requests that ended with them."""
        ended = []
        steady = 0  # events with a token of every step
        for event in events:
            live = self._live[event.request_id]
            if count := len(event.tokens):
                at_s = ends_s[-count]
                if live.first_s < 0:
                    live.first_s = at_s
                    self.cached_tokens += event.num_cached
                else:
                    self.itl.add(at_s - live.last_s)
                live.last_s = ends_s[-1]
                live.tokens += count
                steady += count > 1
            if event.finish is not None:
                del self._live[event.request_id]
                ended.append(event.request_id)
                self._end(live, event)
        if steady:
            self._add_gaps(ends_s, steady)
        self.end_s = max(self.end_s, ends_s[-1])
        return ended

    def use(self, stats: SchedulerStats, seconds: float) -> None:
        """The state of a replica's scheduler for that long."""
        self._use.add(stats, seconds)

    def replica_ended(self, stats: SchedulerStats) -> None:
        self.preemptions += stats.preemptions
        self.steps += stats.steps

    def summaries(self) -> dict[str, Summary]:
        """In milliseconds, without those that have no values."""
        found = {name: summarize(values) for name, values in self._ms.items()}
        found["itl"] = self.itl.summary()
        return {name: summary for name, summary in found.items() if summary is not None}

    def to_json(self) -> dict[str, Any]:
        use, seconds = self._use, self.end_s or 1.0
        shares = {name: getattr(use, name) / (use.seconds or 1.0) for name in ("running", "kv_usage", "kv_waste")}
        return {
            "completed": self.completed,
            "refused": dict(self.refused),
            "duration_s": self.end_s,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "requests_per_s": self.completed / seconds,
            "output_per_s": self.output_tokens / seconds,
            "total_per_s": (self.prompt_tokens + self.output_tokens) / seconds,
            "goodput_per_s": self.met / seconds if self._slo else None,
            "goodput_share": self.met / max(1, self.completed + self.refused.total()) if self._slo else None,
            "latency_ms": {name: summary.to_json() for name, summary in self.summaries().items()},
            "most_running": use.most_running,
            **shares,
            "preemptions": self.preemptions,
            "steps": self.steps,
        }

    def _end(self, live: _Live, event: TokenEvent) -> None:
        if event.finish not in (FinishReason.LENGTH, FinishReason.STOP):
            self.refused[event.error or str(event.finish)] += 1
            return
        self.completed += 1
        self.output_tokens += live.tokens
        ttft, e2el = live.first_s - live.arrival_s, live.last_s - live.arrival_s
        values = {"ttft": ttft, "e2el": e2el, "tpot": (e2el - ttft) / (live.tokens - 1) if live.tokens > 1 else 0.0}
        for name, value in values.items():
            if name != "tpot" or live.tokens > 1:
                self._ms[name].append(1000 * value)
        self.met += all(1000 * values[name] <= bound for name, bound in self._slo.items())

    def _add_gaps(self, ends_s: Sequence[float], times: int) -> None:
        """Steps that follow one another take ever longer, so those of one class are neighbours."""

        def class_of(step: int) -> int:
            return _class_of(ends_s[step + 1] - ends_s[step])

        first, count = 0, len(ends_s) - 1
        last = class_of(count - 1)
        while first < count:
            found = class_of(first)
            end = count if found == last else bisect_right(range(count), found, lo=first, key=class_of)
            self.itl.add((ends_s[end] - ends_s[first]) / (end - first), times * (end - first))
            first = end
