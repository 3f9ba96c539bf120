"""An executor that computes nothing and whose steps take virtual time, by a formula."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass

from legato.core.types import CacheGroup, ExecutorInfo, StepPlan, StepResult

from .scripted import full_group

__all__ = ["Cost", "TimedExecutor", "TimedStep", "roofline"]

Cost = Callable[[int, int, int], float]  # milliseconds of a step of so many rows, pairs and output rows


@dataclass(frozen=True)
class TimedStep:
    """rows: of each of its sequences, in order of service. ms: how long it took. end_s: when it had ended."""

    rows: tuple[int, ...]
    outputs: int
    ms: float
    end_s: float

    @property
    def longest(self) -> int:
        """Rows of its longest chunk."""
        return max(self.rows)


def roofline(
    weights_ms: float, row_ms: float, pair_ms: float, output_ms: float = 0.0, overhead_ms: float = 0.1
) -> Cost:
    """Weights are read once per step, or computed with, whichever takes longer; attention and the head come on top."""

    def cost(rows: int, pairs: int, outputs: int) -> float:
        return 0.1 + max(weights_ms, rows * row_ms) + pairs * pair_ms + outputs * output_ms

    return cost


class TimedExecutor:
    """Implements `legato.core.types.Executor`; every token is 7. `collect` moves `clock` by the step's cost.

    steps: all that were collected. Plans are not checked, as ScriptedExecutor does.
    """

    def __init__(
        self,
        cost: Cost,
        *,
        num_blocks: int = 1000,
        max_rows: int = 512,
        max_seqs: int = 64,
        max_position: int = 8192,
        chunk_align: int = 1,
        groups: tuple[CacheGroup, ...] = (full_group(),),
        host_slots: int = 0,
    ) -> None:
        self._info = ExecutorInfo(
            name="timed",
            cache_groups=groups,
            block_size=16,
            num_blocks=num_blocks,
            max_rows=max_rows,
            max_seqs=max_seqs,
            max_position=max_position,
            vocab_size=1000,
            chunk_align=chunk_align,
            host_slots=host_slots,
        )
        self.cost = cost
        self.now_s = 0.0
        self.steps: list[TimedStep] = []
        self._plan: StepPlan | None = None

    def clock(self) -> float:
        """Seconds."""
        return self.now_s

    def info(self) -> ExecutorInfo:
        return self._info

    def launch(self, plan: StepPlan) -> None:
        assert self._plan is None, "one plan in flight"
        self._plan = plan

    def collect(self, step_id: int) -> StepResult:
        plan, self._plan = self._plan, None
        assert plan is not None
        outputs = len(plan.out_rows)
        ms = self.cost(plan.num_rows, sum(plan.positions) + plan.num_rows, outputs)
        self.now_s += ms / 1000
        offsets = plan.row_offsets
        rows = tuple(offsets[i + 1] - offsets[i] for i in range(plan.num_seqs))
        self.steps.append(TimedStep(rows, outputs, ms, self.now_s))
        return StepResult(
            step_id=step_id,
            tokens=array("i", [7]) * outputs,
            logprobs=array("f", [0.0]) * outputs,
            top_logprobs=(),
            faults=array("b", bytes(plan.num_rows)),
        )

    def load_adapter(self, slot: int, path: str) -> None:
        raise NotImplementedError

    def unload_adapter(self, slot: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass
