"""Policies: who is admitted next, and what a place is worth."""

from collections import OrderedDict
from typing import Protocol

from legato.core.config import SchedulerConfig
from legato.core.errors import ConfigError
from legato.scheduler.state import Sequence

__all__ = ["Fcfs", "Policy", "Queue", "Static", "make_policy"]


class Queue:
    """Waiting sequences in order of service. Every operation is O(1), however many wait.

    num_prompt_tokens: of all that wait; choices of one request count one by one.
    """

    def __init__(self) -> None:
        self.num_prompt_tokens = 0
        self._order: OrderedDict[Sequence, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def append(self, sequence: Sequence) -> None:
        self._order[sequence] = None
        self.num_prompt_tokens += sequence.num_prompt

    def put_back(self, sequence: Sequence) -> None:
        """A preempted sequence goes before all that wait: it was admitted before them."""
        self.append(sequence)
        self._order.move_to_end(sequence, last=False)

    def remove(self, sequence: Sequence) -> None:
        del self._order[sequence]
        self.num_prompt_tokens -= sequence.num_prompt

    def first(self) -> Sequence | None:
        return next(iter(self._order), None)


class Policy(Protocol):
    """What differs between policies. Running sequences are kept in order of admission; the last is preempted first."""

    queue: Queue
    holds_places: bool  # a sequence that ended keeps its place and blocks until the whole batch has ended
    pads: bool  # compute rows for held places, and pad prompts to the longest of the batch
    reuses_prefixes: bool  # a sequence may begin with blocks that another one computed

    def may_admit(self, batch_open: bool, rows_wanted: int, max_rows: int) -> bool:
        """Whether the first in the queue may enter now, if there is a place and blocks for it.

        batch_open: no place was taken before this plan. rows_wanted: rows that those inside could fill in this step.
        """
        ...

    def positions_to_reserve(self, sequence: Sequence, block_size: int) -> int:
        """Positions for which blocks must be free before a sequence is admitted, and stay so after others are."""
        ...


class Fcfs:
    """First come, first served: continuous batching."""

    holds_places = False
    pads = False
    reuses_prefixes = True

    def __init__(self) -> None:
        self.queue = Queue()

    def may_admit(self, batch_open: bool, rows_wanted: int, max_rows: int) -> bool:
        return rows_wanted < max_rows

    def positions_to_reserve(self, sequence: Sequence, block_size: int) -> int:
        """One block more than is known to be needed, so that a newcomer does not push others out at once."""
        return min(sequence.num_tokens + block_size, sequence.max_tokens - 1)


class Static:
    """The naive baseline: a batch is admitted together and held until its longest member ends.

    Blocks are reserved for the longest answer each member may give, so that none is preempted. Every prompt is computed
    whole.
    """

    holds_places = True
    reuses_prefixes = False

    def __init__(self, *, pads: bool) -> None:
        self.queue = Queue()
        self.pads = pads

    def may_admit(self, batch_open: bool, rows_wanted: int, max_rows: int) -> bool:
        return batch_open

    def positions_to_reserve(self, sequence: Sequence, block_size: int) -> int:
        return sequence.max_tokens - 1


def make_policy(config: SchedulerConfig) -> Policy:
    if config.static_padding and config.policy != "static":
        raise ConfigError("static_padding needs policy static")
    match config.policy:
        case "fcfs":
            return Fcfs()
        case "static":
            return Static(pads=config.static_padding)
        case other:
            raise ConfigError(f"policy {other!r} is not known; choose fcfs or static")
