"""Run a scheduler and an executor to the end, without an engine around them."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from legato.core.config import SchedulerConfig
from legato.core.types import Executor, FinishReason, PromptLogprobs, Request, SamplingParams, StepPlan, TokenEvent
from legato.scheduler.scheduler import Scheduler

__all__ = ["Action", "Outcome", "Outcomes", "drive", "make_request", "record", "scheduler_for", "step"]

Action = Callable[[Scheduler], object]  # something that happens to the scheduler between two steps


@dataclass
class Outcome:
    """All that the events said of one sequence."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    finish: FinishReason | None = None
    stop_token: int | None = None
    error: str | None = None
    error_param: str | None = None
    prompt_logprobs: PromptLogprobs | None = None
    num_cached: int = field(default=0, compare=False)  # how the tokens came about, not what they are
    num_pinned: int = field(default=0, compare=False)


Outcomes = dict[tuple[str, int], Outcome]


def make_request(
    request_id: str,
    prompt: Iterable[int],
    *,
    ends: Iterable[int] = (),
    arrival_s: float = 0.0,
    **params: object,
) -> Request:
    """A request with seed 0 unless told otherwise."""
    sampling = SamplingParams(**{"seed": 0, **params})  # type: ignore[arg-type]
    return Request(request_id, tuple(prompt), sampling, arrival_s, end_token_ids=frozenset(ends))


def scheduler_for(executor: Executor, *, clock: Callable[[], float] = lambda: 0.0, **config: object) -> Scheduler:
    return Scheduler(executor.info(), SchedulerConfig(**config), clock)  # type: ignore[arg-type]


def record(outcomes: Outcomes, events: Iterable[TokenEvent]) -> None:
    """Add events to the outcomes; each sequence ends once, and says nothing after its end."""
    for event in events:
        outcome = outcomes.setdefault((event.request_id, event.choice), Outcome())
        assert outcome.finish is None, f"an event after the end: {event}"
        outcome.tokens += event.tokens
        outcome.logprobs += event.logprobs
        outcome.top_logprobs += event.top_logprobs
        outcome.num_cached += event.num_cached  # said once
        if event.prompt_logprobs is not None:
            assert outcome.prompt_logprobs is None, "said once"
            outcome.prompt_logprobs = event.prompt_logprobs
        outcome.num_pinned += event.num_pinned
        outcome.finish, outcome.stop_token = event.finish, event.stop_token
        outcome.error, outcome.error_param = event.error, event.error_param


def step(scheduler: Scheduler, executor: Executor, outcomes: Outcomes, in_flight: "deque[StepPlan]") -> None:
    """Plan and launch as much as the executor takes, then commit the oldest step."""
    progress = False
    while len(in_flight) < executor.info().plans_in_flight:
        plan = scheduler.plan()
        events = scheduler.take_events()
        record(outcomes, events)
        progress = progress or bool(events)
        if plan is None:
            break
        executor.launch(plan)
        in_flight.append(plan)
    if in_flight:
        plan = in_flight.popleft()
        result = executor.collect(plan.step_id)
        if masks := scheduler.refused(plan, result):
            result = executor.sample_again(plan, result, masks)
        record(outcomes, scheduler.commit(plan, result))
        progress = True
    assert progress, "there is work, but nothing was planned and nothing is in flight"


def drive(
    scheduler: Scheduler,
    executor: Executor,
    requests: Iterable[Request] = (),
    events: Mapping[int, Iterable[Action]] | None = None,
    *,
    after_step: Callable[[], object] | None = None,
    max_steps: int = 100_000,
) -> Outcomes:
    """Add `requests`, run until all is done, and return what became of each (request id, choice).

    `events[i]` happen before step i; the loop idles over steps without work as long as some are to come.
    """
    pending = {index: list(actions) for index, actions in (events or {}).items()}
    outcomes: Outcomes = {}
    in_flight: deque[StepPlan] = deque()
    for request in requests:
        scheduler.add(request)
    for index in range(max_steps):
        for action in pending.pop(index, ()):
            action(scheduler)
        if scheduler.has_work or in_flight:
            step(scheduler, executor, outcomes, in_flight)
            if after_step:
                after_step()
        elif not pending:
            return outcomes
    raise AssertionError(f"not done after {max_steps} steps")
