"""The six oracles, for any executor behind a Scheduler. Each raises AssertionError with what differs.

A `make` argument builds a fresh (scheduler, executor) pair; oracles that compare runs call it once per run.
"""

from collections.abc import Callable, Iterable, Sequence

import pytest

from legato.core.errors import RequestError
from legato.core.types import Executor, FinishReason, Request, TokenEvent
from legato.scheduler.scheduler import Scheduler

from .driving import Outcome, Outcomes, drive, record

__all__ = [
    "assert_cold_is_warm",
    "assert_drained",
    "assert_poison_harms_nobody",
    "assert_roomy_is_starved",
    "assert_same",
    "assert_solo_is_crowd",
    "assert_stream_is_whole",
    "run_solo",
]

Make = Callable[[], tuple[Scheduler, Executor]]


def assert_same(left: Outcomes, right: Outcomes) -> None:
    """Tokens, log probabilities and ends are equal, bit for bit."""
    assert left.keys() == right.keys()
    for key in left:
        assert left[key] == right[key], f"{key}: {left[key]} != {right[key]}"


def run_solo(make: Make, requests: Iterable[Request]) -> Outcomes:
    """Each request alone on a fresh scheduler and executor."""
    outcomes: Outcomes = {}
    for request in requests:
        scheduler, executor = make()
        outcomes |= drive(scheduler, executor, [request])
        assert_drained(scheduler)
    return outcomes


def assert_stream_is_whole(events: Sequence[TokenEvent], whole: Outcome) -> None:
    """Oracle 1: the events of one sequence, joined, are its outcome; exactly the last one has an end."""
    joined: Outcomes = {}
    record(joined, events)
    assert len(joined) == 1
    assert [event.finish is not None for event in events] == [False] * (len(events) - 1) + [True]
    assert_same(joined, dict.fromkeys(joined, whole))


def assert_solo_is_crowd(make: Make, requests: Sequence[Request]) -> Outcomes:
    """Oracle 2: each request gives the same alone and among the others."""
    scheduler, executor = make()
    crowd = drive(scheduler, executor, requests)
    assert_drained(scheduler)
    assert_same(run_solo(make, requests), crowd)
    return crowd


def assert_cold_is_warm(make: Make, requests: Sequence[Request]) -> Outcomes:
    """Oracle 3: the same requests, again on a scheduler and executor that have served them before."""
    scheduler, executor = make()
    cold = drive(scheduler, executor, requests)
    warm = drive(scheduler, executor, requests)
    assert_drained(scheduler)
    assert_same(cold, warm)
    return warm


def assert_roomy_is_starved(roomy: Make, starved: Make, requests: Sequence[Request], preemptions: int = 1) -> Outcomes:
    """Oracle 4: the same with plenty of blocks as with so few that sequences are preempted."""
    scheduler, executor = roomy()
    expected = drive(scheduler, executor, requests)
    assert scheduler.stats().preemptions == 0
    scheduler, executor = starved()
    outcomes = drive(scheduler, executor, requests)
    assert scheduler.stats().preemptions >= preemptions, "the starved run was not starved"
    assert_drained(scheduler)
    assert_same(expected, outcomes)
    return outcomes


def assert_drained(scheduler: Scheduler) -> None:
    """Oracle 5: nothing is left of what was served."""
    stats = scheduler.stats()
    assert not scheduler.has_work
    assert (stats.running, stats.waiting, stats.slots_used, stats.blocks_used) == (0, 0, 0, 0), stats


def assert_poison_harms_nobody(make: Make, poison: Request, probe: Request, bystander: Request) -> None:
    """Oracle 6: `poison` is refused while `bystander` runs; both it and a later `probe` are unharmed."""

    def poisoned(scheduler: Scheduler) -> None:
        with pytest.raises(RequestError):
            scheduler.add(poison)

    expected = run_solo(make, [bystander, probe])
    scheduler, executor = make()
    outcomes = drive(scheduler, executor, [bystander], {1: [poisoned, lambda s: s.add(probe)]})
    assert_drained(scheduler)
    assert_same(expected, outcomes)
    assert all(outcome.finish in (FinishReason.STOP, FinishReason.LENGTH) for outcome in outcomes.values())
