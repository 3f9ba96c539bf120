"""Policy `fair`: tenants get equal service, by counters of virtual tokens.

After "Fairness in Serving Large Language Models" (Sheng et al., OSDI 2024, https://arxiv.org/abs/2401.00588): each
tenant has a counter of the service that it got; the tenant with the lowest one is next; one that comes back is lifted
to the lowest of those that wait, so that nobody saves up service while idle.
"""

from collections import OrderedDict
from collections.abc import Iterable
from heapq import heappop, heappush, heapreplace

from legato.core.errors import ConfigError
from legato.scheduler.policies import Fcfs
from legato.scheduler.queues import Queue
from legato.scheduler.state import Sequence

__all__ = ["Fair", "TenantQueue", "parse_weights"]

# What a token costs, as in the paper.
PROMPT_TOKEN = 1.0  # computed, not found in the prefix cache
ANSWER_TOKEN = 2.0

_IDLE_LANES = 1000  # that are kept at least before any is looked at again


class _Lane:
    """One tenant: the service it got over its weight, who waits, and how many run."""

    __slots__ = ("counter", "in_heap", "inside", "waiting", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.counter = 0.0
        self.waiting: OrderedDict[Sequence, None] = OrderedDict()
        self.inside = 0
        self.in_heap = False


class TenantQueue(Queue):
    """A first-in-first-out lane per tenant; the lane with the lowest counter first. O(log tenants)."""

    def __init__(self, weights: dict[str, float]) -> None:
        super().__init__()
        self._weights = weights
        self._lanes: dict[str, _Lane] = {}
        self._heap: list[tuple[float, int, _Lane]] = []  # lanes with who waits, by a counter that may have grown since
        self._pushes = 0
        self._length = 0
        self._last: _Lane | None = None  # whose turn it was last
        self._sweep_at = _IDLE_LANES

    def lane(self, tenant: str) -> _Lane:
        """Made when a tenant first comes; forgotten when it would be lifted anyway (`_sweep`)."""
        lane = self._lanes.get(tenant)
        if lane is None:
            if len(self._lanes) > self._sweep_at:
                self._sweep()
            lane = self._lanes[tenant] = _Lane(self._weights.get(tenant, 1.0))
        return lane

    def counters(self) -> dict[str, float]:
        """Virtual tokens of each known tenant, over its weight."""
        return {tenant: lane.counter for tenant, lane in self._lanes.items()}

    def charge(self, tenant: str, tokens: float) -> None:
        """Count virtual tokens; below 0 where too many were."""
        lane = self.lane(tenant)
        lane.counter += tokens / lane.weight
        if tokens < 0 and lane.waiting:
            self._enter(lane)

    def first(self) -> Sequence | None:
        lane = self._next_lane()
        return None if lane is None else next(iter(lane.waiting))

    def __len__(self) -> int:
        return self._length

    def _insert(self, sequence: Sequence) -> None:
        lane = self.lane(sequence.request.service.tenant)
        if not lane.waiting:
            lane.counter = max(lane.counter, self._floor())
        lane.waiting[sequence] = None
        self._count_in(lane)

    def _insert_again(self, sequence: Sequence) -> None:
        lane = self.lane(sequence.request.service.tenant)
        lane.waiting[sequence] = None
        lane.waiting.move_to_end(sequence, last=False)
        self._count_in(lane)

    def _count_in(self, lane: _Lane) -> None:
        self._length += 1
        if not lane.in_heap:
            self._enter(lane)

    def _enter(self, lane: _Lane) -> None:
        lane.in_heap = True
        self._pushes += 1
        heappush(self._heap, (lane.counter, self._pushes, lane))

    def _discard(self, sequence: Sequence) -> None:
        del self.lane(sequence.request.service.tenant).waiting[sequence]
        self._length -= 1

    def _next_lane(self) -> _Lane | None:
        """An entry that is too low is put right when it comes up. One that is too high has a better one before it."""
        heap = self._heap
        while heap:
            counter, _, lane = heap[0]
            if not lane.waiting:
                heappop(heap)
                lane.in_heap = False
            elif counter < lane.counter:
                self._pushes += 1
                heapreplace(heap, (lane.counter, self._pushes, lane))
            else:
                self._last = lane
                return lane
        return None

    def _floor(self) -> float:
        """To which who comes back is lifted: the lowest counter of those that wait, or of the last that did."""
        lane = self._next_lane() or self._last
        return 0.0 if lane is None else lane.counter

    def _sweep(self) -> None:
        """Forget idle tenants that would be lifted if they came back."""
        floor = self._floor()
        self._lanes = {
            tenant: lane
            for tenant, lane in self._lanes.items()
            if lane.waiting or lane.inside or lane.in_heap or lane.counter > floor
        }
        self._sweep_at = 2 * len(self._lanes) + _IDLE_LANES


class Fair(Fcfs):
    """Admission by the tenants' counters. Work-conserving: a place is given to whoever waits."""

    reorders = True

    def __init__(self, weights: dict[str, float] | None = None) -> None:
        self._lanes = TenantQueue(weights or {})
        super().__init__(self._lanes)

    def entered(self, sequence: Sequence) -> None:
        self._lanes.lane(sequence.request.service.tenant).inside += 1
        self._charge_prompt(sequence, sequence.num_prompt - sequence.num_computed)

    def found_more(self, sequence: Sequence, num_tokens: int) -> None:
        self._charge_prompt(sequence, -num_tokens)

    def _charge_prompt(self, sequence: Sequence, num_tokens: int) -> None:
        if sequence.run == 1:  # what is computed again after a preemption is nobody's service
            self._lanes.charge(sequence.request.service.tenant, PROMPT_TOKEN * num_tokens)

    def sampled(self, sequence: Sequence, num_tokens: int) -> None:
        self._lanes.charge(sequence.request.service.tenant, ANSWER_TOKEN * num_tokens)

    def left(self, sequence: Sequence) -> None:
        self._lanes.lane(sequence.request.service.tenant).inside -= 1


def parse_weights(words: Iterable[str]) -> dict[str, float]:
    """NAME=WEIGHT each. ConfigError."""
    weights: dict[str, float] = {}
    for word in words:
        name, _, value = word.rpartition("=")
        try:
            weight = float(value)
        except ValueError:
            weight = 0.0
        if not name or name in weights or not 0.001 <= weight <= 1000:
            raise ConfigError(f"tenant_weights: {word!r} is not NAME=WEIGHT, once each, with a weight of 0.001 to 1000")
        weights[name] = weight
    return weights
