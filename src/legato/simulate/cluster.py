"""Replicas behind a router, driven by arrivals: one event at a time, in order of time."""

import heapq
from collections.abc import Iterable, Sequence
from functools import partial
from math import inf

from legato.core.config import SchedulerConfig
from legato.core.types import ExecutorInfo, TokenEvent
from legato.executor.roofline import Roofline
from legato.simulate.outcome import Outcome
from legato.simulate.replica import Replica
from legato.simulate.routers import Router
from legato.simulate.traffic import Prompts, Visit

__all__ = ["Cluster"]

_SAMPLE = 16  # the use of memory is looked at when so many launches of a replica have ended


class Cluster:
    """`count` equal replicas. `run` may be called once.

    Requests are made when they come and forgotten when they end, so memory is bounded by what is live at once, and by
    the figures of the outcome: 24 bytes for each request.
    """

    def __init__(
        self,
        info: ExecutorInfo,
        cost: Roofline,
        config: SchedulerConfig,
        router: Router,
        outcome: Outcome,
        *,
        count: int = 1,
        leap: bool = True,
    ) -> None:
        self._prompts = Prompts(info.vocab_size, priorities=config.policy == "priority")
        self._router = router
        self._outcome = outcome
        self._loads = [0] * count
        self._replicas = [
            Replica(info, cost, config, partial(self._on_steps, index), leap=leap) for index in range(count)
        ]
        self._due: list[tuple[float, int]] = []  # (when, replica) of each that computes; some are stale
        self._looked_at_s = [0.0] * count
        self._launches = [0] * count

    def run(self, visits: Iterable[Visit]) -> Outcome:
        """Serve visits, which come in order of time, to the end."""
        for visit in visits:
            self._advance(visit.at_s)
            index = self._router.route(visit, self._loads)
            request = self._prompts.request(visit)
            self._outcome.arrived(request.request_id, visit.at_s, visit.prompt_tokens)
            self._loads[index] += 1
            replica = self._replicas[index]
            before_s = replica.next_s
            if before_s == inf:
                self._looked_at_s[index] = visit.at_s
            replica.submit(request, visit.at_s)
            self._schedule(index, before_s)
        self._advance(inf)
        for replica in self._replicas:
            self._outcome.replica_ended(replica.stats())
        return self._outcome

    def _advance(self, until_s: float) -> None:
        """Do all steps that end before `until_s`."""
        due = self._due
        while due and due[0][0] < until_s:
            at_s, index = heapq.heappop(due)
            replica = self._replicas[index]
            if replica.next_s != at_s:
                continue  # cut short since
            replica.step()
            self._look(index, at_s)
            self._schedule(index, at_s)

    def _schedule(self, index: int, before_s: float) -> None:
        next_s = self._replicas[index].next_s
        if next_s not in (before_s, inf):
            heapq.heappush(self._due, (next_s, index))

    def _look(self, index: int, now_s: float) -> None:
        self._launches[index] += 1
        if self._launches[index] % _SAMPLE == 0:
            self._outcome.use(self._replicas[index].stats(), now_s - self._looked_at_s[index])
            self._looked_at_s[index] = now_s

    def _on_steps(self, index: int, begin_s: float, ends_s: Sequence[float], events: Iterable[TokenEvent]) -> None:
        self._loads[index] -= len(self._outcome.on_steps(begin_s, ends_s, events))
