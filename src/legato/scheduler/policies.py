"""Policies: who is admitted next, who is served before whom, and what a place is worth."""

from collections.abc import Iterable
from typing import Protocol

from legato.core.errors import RequestError
from legato.core.types import Request
from legato.scheduler.queues import Fifo, Queue
from legato.scheduler.state import Sequence

__all__ = ["Fcfs", "Policy", "Static"]


class Policy(Protocol):
    """What differs between policies.

    Running sequences are served in ascending rank, and among equals in order of admission; when blocks run out, the
    last of them is preempted.
    """

    queue: Queue
    holds_places: bool  # a sequence that ended keeps its place and blocks until the whole batch has ended
    pads: bool  # pad prompts to the longest of the batch, and compute on where a sequence has ended
    reuses_prefixes: bool  # a sequence may begin with blocks that another one computed
    evicts: bool  # `may_evict` may say yes
    reorders: bool  # who is first in the queue may change as running sequences get tokens
    times_steps: bool  # `stepped` is to be called

    def check(self, request: Request) -> None:
        """RequestError where the request asks for what this policy does not do. Any thread."""
        ...

    def judge(self, request: Request, ahead: Iterable[Request], now_s: float) -> None:
        """QueueFullError for a request that comes too late to get what it asks for. Any thread.

        ahead: others that have come, and are not in the queue yet.
        """
        ...

    def stepped(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        ...

    def may_admit(self, batch_open: bool, rows_wanted: int, max_rows: int) -> bool:
        """Whether the first in the queue may enter now, if there is a place and blocks for it.

        batch_open: no place was taken before this plan. rows_wanted: rows that those inside could fill in this step.
        """
        ...

    def positions_to_reserve(self, sequence: Sequence, spare: int) -> int:
        """Positions for which blocks must be free before a sequence is admitted, and stay so after others are.

        spare: how many more than are known to be needed.
        """
        ...

    def rank(self, sequence: Sequence, now_s: float) -> float:
        """Of a sequence that is admitted now; it keeps the rank until it leaves."""
        ...

    def may_evict(self, first: Sequence, victim: Sequence, now_s: float) -> bool:
        """Whether the first in the queue may take the place of a running sequence that is served last."""
        ...

    def entered(self, sequence: Sequence) -> None:
        """A sequence was admitted."""
        ...

    def found_more(self, sequence: Sequence, num_tokens: int) -> None:
        """So many tokens of a running sequence were computed by another since it was admitted, before its first row."""
        ...

    def sampled(self, sequence: Sequence, num_tokens: int) -> None:
        """A running sequence has so many tokens more."""
        ...

    def left(self, sequence: Sequence) -> None:
        """A sequence has given up its place."""
        ...


class Fcfs:
    """First come, first served: continuous batching. Others begin with this and change what they must."""

    holds_places = False
    pads = False
    reuses_prefixes = True
    evicts = False
    reorders = False
    times_steps = False
    takes_priority = False
    takes_targets = False

    def __init__(self, queue: Queue | None = None) -> None:
        self.queue = Fifo() if queue is None else queue

    def check(self, request: Request) -> None:
        if request.service.priority and not self.takes_priority:
            raise RequestError("priority needs a server with --policy priority", param="priority")
        if not self.takes_targets:
            for name in request.service.targets():
                raise RequestError(f"{name} needs a server with --policy deadline", param=name)

    def judge(self, request: Request, ahead: Iterable[Request], now_s: float) -> None:
        pass

    def stepped(self, rows: int, seconds: float) -> None:
        pass

    def may_admit(self, batch_open: bool, rows_wanted: int, max_rows: int) -> bool:
        return rows_wanted < max_rows

    def positions_to_reserve(self, sequence: Sequence, spare: int) -> int:
        return min(sequence.num_tokens + spare, sequence.max_tokens - 1)

    def rank(self, sequence: Sequence, now_s: float) -> float:
        return 0

    def may_evict(self, first: Sequence, victim: Sequence, now_s: float) -> bool:
        return False

    def entered(self, sequence: Sequence) -> None:
        pass

    def found_more(self, sequence: Sequence, num_tokens: int) -> None:
        pass

    def sampled(self, sequence: Sequence, num_tokens: int) -> None:
        pass

    def left(self, sequence: Sequence) -> None:
        pass


class Static(Fcfs):
    """The naive baseline: a batch is admitted together and held until its longest member ends.

    Blocks are reserved for the longest answer each member may give, so that none is preempted. Every prompt is computed
    whole. pads: what a padded batch computes for nobody is computed too, and has blocks: each member is as long as the
    longest prompt and the longest answer together.
    """

    holds_places = True
    reuses_prefixes = False

    def __init__(self, *, pads: bool) -> None:
        super().__init__()
        self.pads = pads

    def may_admit(self, batch_open: bool, rows_wanted: int, max_rows: int) -> bool:
        return batch_open

    def positions_to_reserve(self, sequence: Sequence, spare: int) -> int:
        return sequence.max_tokens - 1
