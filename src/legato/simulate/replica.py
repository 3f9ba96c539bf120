"""One engine on a virtual clock: the real scheduler and cache over a simulated executor."""

from collections.abc import Callable, Iterable, Sequence
from math import inf

from legato.core.config import SchedulerConfig
from legato.core.errors import LegatoError
from legato.core.types import ExecutorInfo, FinishReason, Request, StepPlan, TokenEvent
from legato.executor.roofline import Roofline
from legato.executor.simulated import SimulatedExecutor, VirtualClock
from legato.scheduler.scheduler import Scheduler
from legato.scheduler.stats import SchedulerStats

__all__ = ["OnSteps", "Replica"]

OnSteps = Callable[[float, Sequence[float], Iterable[TokenEvent]], object]


class Replica:
    """Steps when it is told that time has come.

    next_s: when `step` is to be called; inf where there is nothing to compute. on_steps(begin_s, ends_s, events):
    steps have ended at these times; an event's tokens are of the last of them, one of each. A request that is refused
    gets one event, with an error.
    leap: do steps that only repeat one another at once. The outcome is the same, and comes much sooner.
    """

    def __init__(
        self, info: ExecutorInfo, cost: Roofline, config: SchedulerConfig, on_steps: OnSteps, *, leap: bool = True
    ) -> None:
        self._clock = VirtualClock()
        self._executor = SimulatedExecutor(info, cost, self._clock)
        self._scheduler = Scheduler(info, config, self._clock)
        self._leap = leap and self._executor.leaps
        self._on_steps = on_steps
        self._plan: StepPlan | None = None
        self._steady = False
        self._inbox: list[Request] = []
        self.next_s = inf

    def submit(self, request: Request, at_s: float) -> None:
        """A request comes, not before any that came. It enters with the first step that begins then or later."""
        self._inbox.append(request)
        if self._plan is None:
            self.next_s = min(self.next_s, max(self._clock.now_s, at_s))
        elif self._steady:
            self._executor.cut(at_s)
            self.next_s = self._executor.ends_s[-1]

    def step(self) -> None:
        """It is `next_s`: commit what has ended, and begin the next step if there is one."""
        plan, begin_s = self._plan, self._clock.now_s
        if plan is None:
            self._clock.now_s = self.next_s
            self._begin()
            return
        if self._steady:
            tokens = self._executor.collect_steady(plan.step_id)
            events = self._scheduler.commit_steady(plan, tokens, self._executor.ends_s)
        else:
            events = self._scheduler.commit(plan, self._executor.collect(plan.step_id))
        self._on_steps(begin_s, self._executor.ends_s, events)
        self._begin()

    def stats(self) -> SchedulerStats:
        return self._scheduler.stats()

    def _begin(self) -> None:
        refused = [event for request in self._inbox for event in self._add(request)]
        self._inbox.clear()
        plan = self._plan = self._scheduler.plan()
        if events := refused + self._scheduler.take_events():
            self._on_steps(self._clock.now_s, (self._clock.now_s,), events)
        if plan is None:
            self.next_s = inf
            return
        steps = self._scheduler.steady_steps(plan) if self._leap else 1
        self._steady = steps > 1
        if self._steady:
            self._executor.launch_steady(plan, steps)
        else:
            self._executor.launch(plan)
        self.next_s = self._executor.ends_s[-1]

    def _add(self, request: Request) -> list[TokenEvent]:
        """A refused request ends with an error, as it does behind a server."""
        try:
            self._scheduler.add(request)
        except LegatoError as error:
            return [TokenEvent(request.request_id, 0, (), finish=FinishReason.ERROR, error=str(error))]
        return []
