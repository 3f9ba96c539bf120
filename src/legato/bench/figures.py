"""Figures from the records of a run, by the definitions of `vllm bench serve`.

TTFT  first chunk - send time                       E2EL  last chunk - send time
TPOT  (E2EL - TTFT) / (output tokens - 1), per request with more than one token
ITL   gaps between successive chunks, pooled over all requests: a chunk may hold several tokens
goodput  requests per second that meet every bound (TPOT of a one-token answer is 0)

Beside them, from the planned instead of the actual send time: TTFT and E2EL "from plan". Their difference is the time
that a request waited in the client, for a free place under the concurrency cap. Requests that failed are in no latency.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from legato.bench.client import Record
from legato.bench.load import Run

__all__ = ["Figures", "Summary", "evaluate", "percentile", "summarize", "token_times"]


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one quantity, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float

    def to_json(self) -> dict[str, float]:
        return {"mean": self.mean, "p50": self.p50, "p90": self.p90, "p99": self.p99}


def summarize(values: Iterable[float]) -> Summary | None:
    """None of no values."""
    ordered = sorted(values)
    if not ordered:
        return None

    p50, p90, p99 = (percentile(ordered, share) for share in (0.5, 0.9, 0.99))
    return Summary(sum(ordered) / len(ordered), p50, p90, p99)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of ascending values, not none, interpolated linearly between neighbours."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True, slots=True)
class Figures:
    """One run. `latencies` maps a name to its values in milliseconds, one per request (ITL: per gap)."""

    completed: int
    failed: Mapping[str, int]  # by kind
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    peak_output_per_s: float
    latencies: Mapping[str, Sequence[float]]
    goodput_per_s: float | None
    cache_hit_rate: float | None  # cached share of the prompt tokens; None where the server does not say
    client_cpu_s: float
    notes: Sequence[str]

    @property
    def failure_rate(self) -> float:
        failed = sum(self.failed.values())
        return failed / (failed + self.completed) if self.failed else 0.0

    def to_json(self) -> dict[str, Any]:
        latencies = {name: summarize(values) for name, values in self.latencies.items()}
        return {
            "completed": self.completed,
            "failed": dict(self.failed),
            "failure_rate": self.failure_rate,
            "duration_s": self.duration_s,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "request_throughput": self.completed / self.duration_s,
            "output_throughput": self.output_tokens / self.duration_s,
            "total_token_throughput": (self.prompt_tokens + self.output_tokens) / self.duration_s,
            "peak_output_throughput": self.peak_output_per_s,
            "request_goodput": self.goodput_per_s,
            "latency_ms": {name: None if s is None else s.to_json() for name, s in latencies.items()},
            "cache_hit_rate": self.cache_hit_rate,
            "client_cpu_s": self.client_cpu_s,
            "notes": list(self.notes),
        }


def evaluate(run: Run, *, goodput: Mapping[str, float], first_cohort: int = 0, fixed_length: bool = False) -> Figures:
    """first_cohort: requests that a closed loop started at once. fixed_length: answers were to have all their tokens.

    goodput: bounds in milliseconds by ttft, tpot, e2el; empty: none asked for.
    """
    good = [record for record in run.records if not record.error]
    latencies = _latencies(good)
    prompt_tokens = sum(record.prompt_tokens for record in good)
    cached = [record.cached_tokens for record in good if record.cached_tokens is not None]
    met = sum(all(_of(record, name) <= bound for name, bound in goodput.items()) for record in good)
    return Figures(
        completed=len(good),
        failed=dict(Counter(record.error for record in run.records if record.error)),
        duration_s=run.duration_s,
        prompt_tokens=prompt_tokens,
        output_tokens=sum(record.output_tokens for record in good),
        peak_output_per_s=_peak(run, good),
        latencies=latencies,
        goodput_per_s=met / run.duration_s if goodput else None,
        cache_hit_rate=sum(cached) / prompt_tokens if cached and prompt_tokens else None,
        client_cpu_s=run.cpu_s,
        notes=_notes(run, good, latencies, first_cohort, fixed_length),
    )


def _of(record: Record, name: str) -> float:
    """Milliseconds."""
    ttft, e2el = record.chunks[0] - record.sent_s, record.chunks[-1] - record.sent_s
    tpot = (e2el - ttft) / (record.output_tokens - 1) if record.output_tokens > 1 else 0.0
    return 1000 * {"ttft": ttft, "e2el": e2el, "tpot": tpot}[name]


def _latencies(good: Sequence[Record]) -> dict[str, list[float]]:
    lag = [1000 * (record.sent_s - record.planned_s) for record in good]
    ttft, e2el = ([_of(record, name) for record in good] for name in ("ttft", "e2el"))
    return {
        "ttft": ttft,
        "tpot": [_of(record, "tpot") for record in good if record.output_tokens > 1],
        "itl": [1000 * (b - a) for record in good for a, b in zip(record.chunks, record.chunks[1:], strict=False)],
        "e2el": e2el,
        "send_lag": lag,
        "ttft_from_plan": [a + b for a, b in zip(ttft, lag, strict=True)],
        "e2el_from_plan": [a + b for a, b in zip(e2el, lag, strict=True)],
    }


def token_times(run: Run, records: Iterable[Record]) -> list[tuple[float, float]]:
    """(seconds from the start, tokens) of each chunk; a request's tokens are spread evenly over its chunks."""
    return [
        (at - run.started_s, record.output_tokens / len(record.chunks)) for record in records for at in record.chunks
    ]


def _peak(run: Run, good: Sequence[Record]) -> float:
    """Tokens per second in the best of the equal spans of at most a second that the run divides into."""
    count = max(1, math.ceil(run.duration_s))
    width = run.duration_s / count
    spans = [0.0] * count
    for at, tokens in token_times(run, good):
        spans[min(count - 1, int(at / width))] += tokens
    return max(spans) / width


def _notes(
    run: Run, good: Sequence[Record], latencies: Mapping[str, Sequence[float]], first_cohort: int, fixed_length: bool
) -> list[str]:
    notes = []
    if uncounted := sum(not record.counted for record in good):
        notes.append(f"{uncounted} answers came without usage: their chunks were counted as tokens")
    short = sum(record.output_tokens != record.wanted_tokens for record in good)
    if fixed_length and short:
        notes.append(f"{short} answers had another length than asked for, in spite of ignore_eos")
    if run.warmup_failures:
        notes.append(f"{run.warmup_failures} warm-up requests failed")
    if first_cohort:
        notes.append(_closed_loop(run, first_cohort))
    elif good and sum(latencies["send_lag"]) > 0.01 * sum(latencies["e2el"]):
        share = sum(latencies["send_lag"]) / sum(latencies["e2el"])
        notes.append(
            f"the send lag is {share:.0%} of the end-to-end latency: requests waited in the client; "
            "the figures from plan include that"
        )
    return notes


def _closed_loop(run: Run, first_cohort: int) -> str:
    """All of the first cohort start at once, which a steady closed loop never does again."""
    later = sorted(run.records, key=lambda record: record.sent_s)[first_cohort:]
    all_of, rest = (summarize(_of(r, "ttft") for r in records if not r.error) for records in (run.records, later))
    text = f"closed loop: the first {first_cohort} requests started at once, the others as places became free"
    if all_of is None or rest is None:
        return text
    return f"{text}; TTFT p99 is {all_of.p99:.1f} ms with those first ones and {rest.p99:.1f} ms without"
