"""Policy `priority`: the lowest number first, and nobody waits for ever."""

from legato.core.errors import RequestError
from legato.core.types import Request
from legato.scheduler.policies import Fcfs
from legato.scheduler.queues import KeyQueue
from legato.scheduler.state import Sequence

__all__ = ["AGEING_S", "Priority"]

AGEING_S = 60.0  # unless configured
MOST = 1 << 31  # of a priority, either way


class Priority(Fcfs):
    """A sequence is at its request's priority, and one level lower for each `ageing_s` seconds that it has waited.

    Two that wait keep their order whatever time it is, so the queue is a heap: by priority * ageing_s + the time since
    when it waits. A sequence is served at the level that it was admitted at, and preempted by those of lower levels.
    The first in the queue takes the place of one that is at a higher level and has the higher number as well: of equal
    priority, nobody ever does.
    """

    evicts = True
    takes_priority = True

    def __init__(self, ageing_s: float = AGEING_S) -> None:
        super().__init__(KeyQueue(self._key))
        self._ageing_s = ageing_s

    def check(self, request: Request) -> None:
        if abs(request.service.priority) > MOST:
            raise RequestError(f"priority must be from -{MOST} to {MOST}", param="priority")

    def rank(self, sequence: Sequence, now_s: float) -> float:
        return sequence.request.service.priority - (now_s - sequence.waiting_since_s) // self._ageing_s

    def may_evict(self, first: Sequence, victim: Sequence, now_s: float) -> bool:
        asked, given = first.request.service.priority, victim.request.service.priority
        return asked < given and self.rank(first, now_s) < victim.rank

    def _key(self, sequence: Sequence) -> float:
        return sequence.request.service.priority * self._ageing_s + sequence.waiting_since_s
