"""Where the time of a step goes: the native executor's own counters, and what is left of the wall time.

Kinds of op, `prepare` (copies, cutting the work into items) and `sample` are times in which the compute threads run.
The rest is `between steps`: the engine plans, commits and hands over, and nothing computes. Rendering runs beside the
next step, so it is in that rest only where it outlasts the step, or after the last one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from legato.bench.throughput import run_jobs
from legato.bench.workloads import WARM_UP, Job
from legato.core.types import Executor
from legato.engine.llm import LLM
from legato.executor.native import NativeExecutor

__all__ = ["BETWEEN", "StepProfile", "measure", "native"]

BETWEEN = "between steps"


@dataclass(frozen=True, slots=True)
class StepProfile:
    """One workload, all rounds together. parts: seconds by kind of op, prepare, sample, and between steps."""

    workload: str
    seconds: float
    steps: int
    rows: int
    parts: Mapping[str, float]

    def share(self, part: str) -> float:
        """Of the wall time."""
        return self.parts[part] / self.seconds

    def ms_per_step(self, part: str) -> float:
        return 1000 * self.parts[part] / self.steps

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "shares": {part: self.share(part) for part in self.parts}}


def native(executor: Executor) -> NativeExecutor:
    """The executor as one that counts. TypeError for another."""
    if not isinstance(executor, NativeExecutor):
        raise TypeError(type(executor).__name__)
    return executor


def measure(
    llm: LLM,
    executor: NativeExecutor,
    workloads: Mapping[str, list[Job]],
    names: Sequence[str],
    rounds: int,
    progress: Callable[[str, int, float], None],
) -> list[StepProfile]:
    """Run each named workload `rounds` times, after a short request that warms up. `executor` is that of the LLM."""
    run_jobs(llm, [WARM_UP])
    found = []
    for name in names:
        executor.profile(reset=True)
        seconds = 0.0
        for index in range(rounds):
            elapsed, _ = run_jobs(llm, workloads[name])
            seconds += elapsed
            progress(name, index, elapsed)
        found.append(_profile(name, seconds, executor.profile()))
    return found


def _profile(name: str, seconds: float, counters: dict[str, int]) -> StepProfile:
    """counters: what NativeExecutor.profile says, in nanoseconds but for steps and rows."""
    steps, rows = counters.pop("steps"), counters.pop("rows")
    parts = {part: ns * 1e-9 for part, ns in counters.items()}
    return StepProfile(name, seconds, steps, rows, {**parts, BETWEEN: seconds - sum(parts.values())})
