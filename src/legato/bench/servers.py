"""Two servers under the same load, in turn: the ratio of their medians over the rounds, with the spread of each."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from legato.bench.figures import Figures, summarize
from legato.bench.load import Plan
from legato.bench.report import LABELS
from legato.bench.throughput import spread

__all__ = ["Compared", "compare", "side_by_side"]


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric; a value for each round of each server."""

    metric: str
    first: Sequence[float]
    second: Sequence[float]

    @property
    def medians(self) -> tuple[float, float]:
        return statistics.median(self.first), statistics.median(self.second)

    @property
    def spreads(self) -> tuple[float | None, float | None]:
        """(largest - smallest) / median; None where the median is 0."""
        first, second = (spread(values) if statistics.median(values) else None for values in (self.first, self.second))
        return first, second

    @property
    def ratio(self) -> float | None:
        """Of the first's median to the second's; None where that is 0."""
        first, second = self.medians
        return first / second if second else None

    def to_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "first": list(self.first),
            "second": list(self.second),
            "medians": self.medians,
            "spreads": self.spreads,
            "ratio": self.ratio,
        }


def compare(
    rounds: Sequence[tuple[Plan, Plan]], measure: Callable[[Plan], Figures]
) -> tuple[list[Figures], list[Figures]]:
    """Measure both plans of each round. Who begins alternates, so that slow drift hits both alike."""
    found: tuple[list[Figures], list[Figures]] = ([], [])
    for index, plans in enumerate(rounds):
        for place in (0, 1) if index % 2 == 0 else (1, 0):
            found[place].append(measure(plans[place]))
    return found


def side_by_side(first: Sequence[Figures], second: Sequence[Figures]) -> list[Compared]:
    """Each metric that every round of both servers has."""
    columns = [[_metrics(figures) for figures in each] for each in (first, second)]
    names = [name for name in columns[0][0] if all(name in row for rows in columns for row in rows)]
    return [Compared(name, *([row[name] for row in rows] for rows in columns)) for name in names]


def _metrics(figures: Figures) -> dict[str, float]:
    found = {
        "output tok/s": figures.output_tokens / figures.duration_s,
        "total tok/s": (figures.prompt_tokens + figures.output_tokens) / figures.duration_s,
        "requests/s": figures.completed / figures.duration_s,
        "requests failed": float(sum(figures.failed.values())),
        "client CPU, s": figures.client_cpu_s,
    }
    for name, values in figures.latencies.items():
        if (summary := summarize(values)) is not None:
            found |= {f"{LABELS[name]} p50, ms": summary.p50, f"{LABELS[name]} p99, ms": summary.p99}
    if figures.goodput_per_s is not None:
        found["goodput, requests/s"] = figures.goodput_per_s
    if figures.cache_hit_rate is not None:
        found["prefix cache hits"] = figures.cache_hit_rate
    return found
