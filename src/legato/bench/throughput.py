"""Offline throughput: all requests of a workload at once, through the same engine that serves.

output tok/s = generated tokens / wall time; total tok/s = (prompt + generated tokens) / wall time. The model is loaded
and one short request has run before the clock starts. Figures are medians over the rounds, with the spread. What a
prefix cache knew of the prompts from an earlier round was not computed; its share is among the figures.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from legato.bench.workloads import WARM_UP, Job
from legato.core.types import SamplingParams
from legato.engine.llm import LLM

__all__ = ["COLUMNS", "Rates", "Throughput", "cells", "measure", "run_jobs", "spread"]

COLUMNS = ("workload", "requests", "tokens in", "cached", "tokens out", "output tok/s", "total tok/s", "spread")


def spread(seconds: Sequence[float]) -> float:
    """(slowest - fastest) / median."""
    return (max(seconds) - min(seconds)) / statistics.median(seconds)


class Rates:
    """What follows from the seconds of each round and the tokens of one."""

    __slots__ = ()
    seconds: tuple[float, ...]
    tokens_in: int
    tokens_out: int

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def output_per_s(self) -> float:
        return self.tokens_out / self.median_s

    @property
    def total_per_s(self) -> float:
        return (self.tokens_in + self.tokens_out) / self.median_s

    @property
    def spread(self) -> float:
        return spread(self.seconds)


@dataclass(frozen=True, slots=True)
class Throughput(Rates):
    """One workload's figures. Seconds are wall time per round, in the order they ran.

    cached: prompt tokens of all rounds together that the prefix cache knew.
    """

    workload: str
    requests: int
    tokens_in: int
    tokens_out: int
    seconds: tuple[float, ...]
    cached: int

    @property
    def cached_share(self) -> float:
        """Of the prompt tokens."""
        return self.cached / (self.tokens_in * len(self.seconds))

    def to_json(self) -> dict[str, object]:
        figures = ("output_per_s", "total_per_s", "spread", "cached_share")
        return {**asdict(self), **{name: getattr(self, name) for name in figures}}


def cells(result: Throughput) -> list[str]:
    """For people, under COLUMNS."""
    return [
        result.workload,
        f"{result.requests:,}",
        f"{result.tokens_in:,}",
        f"{result.cached_share:.0%}",
        f"{result.tokens_out:,}",
        f"{result.output_per_s:,.1f}",
        f"{result.total_per_s:,.1f}",
        f"{result.spread:.1%}",
    ]


def run_jobs(llm: LLM, jobs: Sequence[Job]) -> tuple[float, int]:
    """Seconds that all jobs took together, and how many prompt tokens the prefix cache knew.

    RuntimeError where a job did not make all its tokens.
    """
    prompts = [{"prompt_token_ids": list(job.prompt)} for job in jobs]
    params = [SamplingParams(temperature=0.0, max_tokens=job.max_tokens, ignore_eos=True) for job in jobs]
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    elapsed = time.perf_counter() - start
    for job, output in zip(jobs, outputs, strict=True):
        made = len(output.outputs[0].token_ids)
        if made != job.max_tokens:
            raise RuntimeError(f"a request made {made} of {job.max_tokens} tokens")
    return elapsed, sum(output.num_cached_tokens for output in outputs)


def measure(
    llm: LLM,
    workloads: dict[str, list[Job]],
    names: Sequence[str],
    rounds: int,
    progress: Callable[[str, int, float], None],
    begin: Callable[[str], object] = lambda name: None,
) -> list[Throughput]:
    """Run each named workload `rounds` times, round by round so that slow drift hits all alike.

    begin: called just before the clock of a run starts.
    """
    run_jobs(llm, [WARM_UP])
    seconds: dict[str, list[float]] = {name: [] for name in names}
    cached = dict.fromkeys(names, 0)
    for index in range(rounds):
        for name in names:
            begin(name)
            elapsed, hits = run_jobs(llm, workloads[name])
            cached[name] += hits
            seconds[name].append(elapsed)
            progress(name, index, elapsed)
    return [
        Throughput(
            name,
            len(workloads[name]),
            sum(len(job.prompt) for job in workloads[name]),
            sum(job.max_tokens for job in workloads[name]),
            tuple(seconds[name]),
            cached[name],
        )
        for name in names
    ]
