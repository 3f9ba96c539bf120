"""Waiting sequences in order of service. No operation looks at all that wait."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from legato.scheduler.state import Sequence

__all__ = ["Fifo", "KeyQueue", "Queue"]

_SLACK = 64  # stale entries that a heap may always have


class Queue(ABC):
    """num_prompt_tokens: of all that wait; choices of one request count one by one."""

    def __init__(self) -> None:
        self.num_prompt_tokens = 0

    def append(self, sequence: Sequence) -> None:
        """One that comes."""
        self.num_prompt_tokens += sequence.num_prompt
        self._insert(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """One that was preempted."""
        self.num_prompt_tokens += sequence.num_prompt
        self._insert_again(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._discard(sequence)
        self.num_prompt_tokens -= sequence.num_prompt

    @abstractmethod
    def first(self) -> Sequence | None:
        """Whose turn it is. It stays the same while nothing comes, goes or is served."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _insert(self, sequence: Sequence) -> None: ...

    @abstractmethod
    def _insert_again(self, sequence: Sequence) -> None: ...

    @abstractmethod
    def _discard(self, sequence: Sequence) -> None: ...


class Fifo(Queue):
    """First come, first served. Who was preempted goes before all: it was admitted before them. O(1)."""

    def __init__(self) -> None:
        super().__init__()
        self._order: OrderedDict[Sequence, None] = OrderedDict()

    def first(self) -> Sequence | None:
        return next(iter(self._order), None)

    def __len__(self) -> int:
        return len(self._order)

    def _insert(self, sequence: Sequence) -> None:
        self._order[sequence] = None

    def _insert_again(self, sequence: Sequence) -> None:
        self._order[sequence] = None
        self._order.move_to_end(sequence, last=False)

    def _discard(self, sequence: Sequence) -> None:
        del self._order[sequence]


class KeyQueue(Queue):
    """The lowest key first, then first come, first served. The key of a sequence is read when it enters. O(log n)."""

    def __init__(self, key: Callable[[Sequence], float]) -> None:
        super().__init__()
        self._key = key
        self._heap: list[tuple[float, int, Sequence]] = []  # with entries of some that have left
        self._numbers: dict[Sequence, int] = {}  # of the entry of each that is here
        self._entered = 0

    def first(self) -> Sequence | None:
        heap = self._heap
        while heap and self._numbers.get(heap[0][2]) != heap[0][1]:
            heappop(heap)
        return heap[0][2] if heap else None

    def __len__(self) -> int:
        return len(self._numbers)

    def _insert(self, sequence: Sequence) -> None:
        self._entered += 1
        self._push(sequence, self._entered)

    def _insert_again(self, sequence: Sequence) -> None:
        self._entered += 1
        self._push(sequence, -self._entered)  # before all with the same key

    def _push(self, sequence: Sequence, number: int) -> None:
        self._numbers[sequence] = number
        heappush(self._heap, (self._key(sequence), number, sequence))

    def _discard(self, sequence: Sequence) -> None:
        del self._numbers[sequence]
        if len(self._heap) > 2 * len(self._numbers) + _SLACK:
            self._heap = [entry for entry in self._heap if self._numbers.get(entry[2]) == entry[1]]
            heapify(self._heap)
