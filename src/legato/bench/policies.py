"""Continuous against static batching on one engine, and what their KV memory holds.

The two static servers admit a batch together and keep its places until the longest answer is done. One computes what
the naive server does: prompts padded to the longest, and in every step a token for each place, ended or not, whose
context grows on; the other leaves out the rows of what has ended.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from legato.bench.profile import native
from legato.bench.recorder import Recorder, Trace
from legato.bench.throughput import Rates, run_jobs
from legato.bench.workloads import Job
from legato.core.config import EngineConfig
from legato.core.types import ExecutorInfo
from legato.engine.llm import LLM
from legato.engine.start import start

__all__ = [
    "COLUMNS",
    "MEMORY_COLUMNS",
    "POLICIES",
    "KvMemory",
    "PolicyRun",
    "compare",
    "kv_memory",
    "memory_cells",
    "policy_cells",
    "why",
]

COLUMNS = (
    "policy",
    "output tok/s",
    "continuous is",
    "steps",
    "ms/step",
    "rows",
    "useless rows",
    "KV waste",
    "spread",
)
MEMORY_COLUMNS = ("layout", "waste", "streams")
POLICIES = {
    "continuous": ("fcfs", False),
    "static, skips ended rows": ("static", False),
    "static, computes padded rows": ("static", True),
}


@dataclass(frozen=True, slots=True)
class PolicyRun(Rates):
    """One policy over the workload. steps and rows are of one round: rows are tokens computed, padding included.

    kv_waste: unused slots of allocated blocks / allocated slots, the mean over the steps of one round.
    """

    policy: str
    seconds: tuple[float, ...]
    tokens_in: int
    tokens_out: int
    steps: int
    rows: int
    kv_waste: float

    @property
    def useless_rows(self) -> float:
        """Share of the computed rows that no request needed."""
        return max(0.0, 1 - (self.tokens_in + self.tokens_out) / self.rows)

    @property
    def ms_per_step(self) -> float:
        return 1000 * self.median_s / self.steps

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "output_per_s": self.output_per_s, "useless_rows": self.useless_rows}


def compare(
    config: EngineConfig, jobs: Sequence[Job], rounds: int, progress: Callable[[str, int, float], None]
) -> tuple[list[PolicyRun], dict[str, Trace], ExecutorInfo]:
    """Run the workload under each policy, in turn, `rounds` times. Needs the native executor.

    Their figures; the trace of each one's last round, by its name; and what they ran on.
    """
    traces: dict[str, Trace] = {}
    seconds: dict[str, list[float]] = {name: [] for name in POLICIES}
    counts: dict[str, tuple[int, int, float]] = {}
    for index in range(rounds):
        for name, (policy, padding) in POLICIES.items():
            scheduler = replace(config.scheduler, policy=policy, static_padding=padding)
            elapsed, counts[name], traces[name], info = _once(replace(config, scheduler=scheduler), jobs)
            seconds[name].append(elapsed)
            progress(name, index, elapsed)
    tokens_in, tokens_out = sum(len(job.prompt) for job in jobs), sum(job.max_tokens for job in jobs)
    runs = [PolicyRun(name, tuple(seconds[name]), tokens_in, tokens_out, *counts[name]) for name in POLICIES]
    return runs, traces, info


def _once(config: EngineConfig, jobs: Sequence[Job]) -> tuple[float, tuple[int, int, float], Trace, ExecutorInfo]:
    """Seconds; steps, rows and KV waste; what came when; and what ran."""
    engine = start(config)
    executor = native(engine.executor)
    with LLM.over(engine) as llm:
        trace = Recorder(engine.loop).trace
        executor.profile(reset=True)
        elapsed, _ = run_jobs(llm, jobs)
        profile = executor.profile()
    return elapsed, (profile["steps"], profile["rows"], statistics.fmean(trace.kv_waste)), trace, engine.info


def policy_cells(run: PolicyRun, continuous: PolicyRun) -> list[str]:
    """For people, under COLUMNS."""
    return [
        run.policy,
        f"{run.output_per_s:,.1f}",
        "" if run is continuous else f"{run.median_s / continuous.median_s:.2f}x as fast",
        f"{run.steps:,}",
        f"{run.ms_per_step:.1f}",
        f"{run.rows:,}",
        f"{run.useless_rows:.0%}",
        f"{run.kv_waste:.1%}",
        f"{run.spread:.1%}",
    ]


def why(runs: Sequence[PolicyRun]) -> list[str]:
    """The reasons of the figures, a sentence each. runs: one per policy, in their order."""
    continuous, skips, pads = runs
    live, few = (run.rows / run.steps for run in (continuous, skips))
    skipped = (
        f"Where ended rows are skipped, a step then holds {few:.0f} rows on average instead of {live:.0f}, and takes "
        f"{skips.ms_per_step:.1f} ms instead of {continuous.ms_per_step:.1f}: on a CPU its time follows its rows."
    )
    computed = (
        f"Where they are computed, all places are in each step: {pads.rows / continuous.rows:.2f}x the rows, "
        f"{pads.useless_rows:.0%} of them for nobody, in {pads.ms_per_step:.1f} ms a step."
    )
    held = f"Places held until the longest answer ends make {skips.steps / continuous.steps:.2f}x the steps."
    return [held, skipped, computed]


@dataclass(frozen=True, slots=True)
class KvMemory:
    """One way to give KV slots to sequences. waste: share of the reserved slots that hold nothing, over time."""

    layout: str
    waste: float
    streams: int  # that fit into the pool, on average over their lives

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def kv_memory(jobs: Sequence[Job], pool_slots: int, block_size: int, max_model_len: int) -> list[KvMemory]:
    """Contiguous preallocation against blocks, for a pool of `pool_slots` KV slots, by counting.

    Each job is followed through its decode steps, so that long answers, which stay longer, weigh more. Contiguous
    sequences reserve max_model_len slots, or as many as the longest job of the workload, were that known beforehand.
    """
    longest = max(len(job.prompt) + job.max_tokens for job in jobs)
    steps = used = paged = 0
    for job in jobs:
        for length in range(len(job.prompt), len(job.prompt) + job.max_tokens):
            steps += 1
            used += length
            paged += -(-length // block_size) * block_size
    layouts = {
        f"contiguous, {max_model_len} slots each": max_model_len * steps,
        f"contiguous, {longest} slots each": longest * steps,
        f"paged, blocks of {block_size}": paged,
    }
    return [KvMemory(name, 1 - used / reserved, pool_slots * steps // reserved) for name, reserved in layouts.items()]


def memory_cells(memory: KvMemory) -> list[str]:
    """For people, under MEMORY_COLUMNS."""
    return [memory.layout, f"{memory.waste:.1%}", f"{memory.streams:,}"]
