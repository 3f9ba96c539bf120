"""An executor without a model: it takes the time that a roofline says, on a virtual clock, and makes up the tokens.

Tokens depend on their position alone, so a run can be repeated, and none ends a sequence: traffic says how long answers
are. A step after which the scheduler only repeats decodes can be launched with them; see `launch_steady`.
"""

from array import array
from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

from legato.core.config import CacheConfig, SchedulerConfig
from legato.core.errors import ConfigError
from legato.core.types import CacheGroup, ExecutorInfo, StepPlan, StepResult
from legato.executor.memory import MemoryBudget, budget
from legato.executor.roofline import Hardware, ModelProfile, Numbers, Roofline

__all__ = ["SimulatedExecutor", "VirtualClock", "simulated_info"]

_FIRST_TOKEN = 3  # control tokens are not made up
_WORKSPACE_VALUES = 64  # per row and value of the residual stream: activations of the largest step


class VirtualClock:
    """Seconds since the start of the simulation. Calling it reads it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class SimulatedExecutor:
    """An `Executor` on a virtual clock, one launch in flight at a time.

    `ends_s`: when each step of the last launch ends. Collecting moves the clock to the end of the last.
    """

    def __init__(self, info: ExecutorInfo, cost: Roofline, clock: VirtualClock) -> None:
        self._info = info
        self._cost = cost
        self._clock = clock
        self._plan: StepPlan | None = None
        self.ends_s: list[float] = []
        self.leaps = cost.unwindowed
        span = info.vocab_size - _FIRST_TOKEN
        count = info.max_position + 1
        self._tokens = array("i", (_FIRST_TOKEN + position % span if span > 0 else 0 for position in range(count)))

    def info(self) -> ExecutorInfo:
        return self._info

    def launch(self, plan: StepPlan) -> None:
        self._start(plan, [self._clock.now_s + self._cost.step_s(plan)])

    def launch_steady(self, plan: StepPlan, steps: int) -> None:
        """The planned step and the `steps` - 1 decodes after it, in each of which each sequence gets one token.

        They end exactly when as many single launches would have ended. Needs `leaps`: no layer has a window.
        """
        rows = plan.num_seqs
        fixed, rate = self._cost.fixed_s(rows, rows, rows), self._cost.position_s
        second = sum(last + 2 for last in _last_positions(plan))
        times = [fixed + rate * context for context in range(second, second + (steps - 1) * rows, rows)]
        times.insert(0, self._clock.now_s + self._cost.step_s(plan))
        self._start(plan, list(accumulate(times)))

    def cut(self, at_s: float) -> None:
        """Leave out the steps of the launch in flight that would begin at `at_s` or later."""
        del self.ends_s[bisect_left(self.ends_s, at_s) + 1 :]

    def collect(self, step_id: int) -> StepResult:
        """The result of the first step. RuntimeError where another or none was launched."""
        plan = self._finish(step_id)
        tokens = array("i", (self._tokens[plan.positions[row] + 1] for row in plan.out_rows))
        no_logprob = array("f", [float("nan")]) * len(tokens)
        return StepResult(step_id, tokens, no_logprob, (), array("b", bytes(plan.num_rows)))

    def sample_again(self, plan: StepPlan, result: StepResult, masks: Mapping[int, bytes]) -> StepResult:
        """There are no logits."""
        return result

    def collect_steady(self, step_id: int) -> "list[array[int]]":
        """The tokens of all steps, for each sequence."""
        plan, steps = self._finish(step_id), len(self.ends_s)
        return [self._tokens[last + 1 : last + 1 + steps] for last in _last_positions(plan)]

    def load_adapter(self, slot: int, path: str) -> None:
        raise ConfigError("adapters are not simulated")

    def unload_adapter(self, slot: int) -> None:
        raise ConfigError("adapters are not simulated")

    def close(self) -> None:
        self._plan = None

    def _start(self, plan: StepPlan, ends_s: list[float]) -> None:
        if self._plan is not None:
            raise RuntimeError(f"step {self._plan.step_id} is in flight")
        self._plan, self.ends_s = plan, ends_s

    def _finish(self, step_id: int) -> StepPlan:
        plan = self._plan
        if plan is None or plan.step_id != step_id:
            raise RuntimeError(f"step {step_id} is not in flight")
        self._plan = None
        self._clock.now_s = self.ends_s[-1]
        return plan


def _last_positions(plan: StepPlan) -> "list[int]":
    """Of each sequence."""
    return [plan.positions[end - 1] for end in plan.row_offsets[1:]]


def simulated_info(
    model: ModelProfile,
    hardware: Hardware,
    numbers: Numbers,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    max_model_len: int | None = None,
) -> tuple[ExecutorInfo, MemoryBudget]:
    """What an engine for this model on this machine would say of itself, and how its memory is divided.

    Sizes are those of one device. ConfigError where the model does not fit, or `max_model_len` is beyond its limit.
    """
    if max_model_len is not None and not 0 < max_model_len <= model.max_position:
        raise ConfigError(f"max_model_len {max_model_len} is not between 1 and the model's limit {model.max_position}")
    max_position = max_model_len or model.max_position
    groups = tuple(
        CacheGroup(
            name=kind.kind if kind.window is None else f"{kind.kind} {kind.window}",
            kind=kind.kind,
            window=kind.window,
            num_layers=kind.layers,
            bytes_per_block=round(
                kind.values * kind.layers * cache.block_size * numbers.cache_bytes / min(numbers.devices, kind.kv_heads)
            ),
        )
        for kind in model.attention
    )
    rows = scheduler.max_num_batched_tokens
    memory = budget(
        {
            "weights": round(model.total * numbers.weight_bytes / numbers.devices),
            "workspace": round(_WORKSPACE_VALUES * rows * model.hidden / numbers.devices)
            + 4 * scheduler.max_num_seqs * model.vocab,
        },
        sum(group.bytes_per_block for group in groups),
        cache,
        max_seqs=scheduler.max_num_seqs,
        max_position=max_position,
        available=hardware.memory,
    )
    info = ExecutorInfo(
        name="simulated",
        cache_groups=groups,
        block_size=cache.block_size,
        num_blocks=memory.num_blocks,
        max_rows=rows,
        max_seqs=scheduler.max_num_seqs,
        max_position=max_position,
        vocab_size=model.vocab,
        details={"hardware": hardware.name, "weights": numbers.format, "devices": str(numbers.devices)},
    )
    return info, memory
