"""Policy `deadline`: the earliest deadline first, and what cannot be met is refused when it comes."""

from collections.abc import Iterable

from legato.core.errors import QueueFullError, RequestError
from legato.core.types import Request
from legato.scheduler.policies import Fcfs
from legato.scheduler.queues import KeyQueue
from legato.scheduler.state import Sequence, State

__all__ = ["DEFAULT_TTFT_S", "Deadline", "due_s"]

DEFAULT_TTFT_S = 60.0  # of a request without a target, so that it is not behind others for ever
BUCKET_S = 0.1  # deadlines are counted in buckets of this length
MOST_S = 3600.0  # of a target
MARGIN = 1.2  # by which work may take longer than at the measured rate
MEMORY_S = 4.0  # of service that the rate is measured over
FIRST_ANSWERS = 64  # over how many answers their mean length is taken


def due_s(request: Request) -> float:
    """When the first token is due: by its own target, or as late as the answer's leaves it."""
    service = request.service
    targets = [t for t in (service.ttft_s, service.e2e_s) if t is not None]
    return request.arrival_s + min(targets, default=DEFAULT_TTFT_S)


class _DueQueue(KeyQueue):
    """By deadline; and how much work waits, by deadline."""

    def __init__(self) -> None:
        super().__init__(lambda sequence: due_s(sequence.request))
        self.work: dict[int, float] = {}  # tokens that wait, by bucket
        self.mean_answer = 0.0  # tokens
        self._counted: dict[Sequence, tuple[int, float]] = {}

    def tokens_of(self, request: Request) -> float:
        """Of one choice: the prompt, and an answer as long as they are on average, or as long as it may be."""
        most = request.params.max_tokens
        answer = self.mean_answer or (most or 0)
        return len(request.prompt) + (answer if most is None else min(most, answer))

    def work_by_deadline(self) -> list[tuple[int, float]]:
        """(bucket, tokens that wait and are due in it), ascending. Any thread."""
        return sorted(self.work.items())

    def _push(self, sequence: Sequence, number: int) -> None:
        super()._push(sequence, number)
        bucket, tokens = _bucket(due_s(sequence.request)), self.tokens_of(sequence.request)
        self._counted[sequence] = bucket, tokens
        self.work[bucket] = self.work.get(bucket, 0.0) + tokens

    def _discard(self, sequence: Sequence) -> None:
        super()._discard(sequence)
        bucket, tokens = self._counted.pop(sequence)
        self.work[bucket] -= tokens
        if self.work[bucket] < 0.5:  # tokens are no fractions but for the mean answer
            del self.work[bucket]


class Deadline(Fcfs):
    """Earliest deadline first, admission and service alike; a deadline never moves, so nobody starves.

    A request is refused when the work that is due before it, at the rate of the last seconds in which somebody waited,
    takes longer than it has, or when it would take the time of one that waits already. The rate counts all tokens
    computed, prompts and answers, and so does the work.
    """

    takes_targets = True
    times_steps = True

    def __init__(self) -> None:
        self._due = _DueQueue()
        super().__init__(self._due)
        self._tokens = 0.0  # computed while somebody waited, and for how long
        self._seconds = 0.0
        self._answers = 0
        self._step_s = 0.0  # mean of the last steps

    def rank(self, sequence: Sequence, now_s: float) -> float:
        return due_s(sequence.request)

    def left(self, sequence: Sequence) -> None:
        if sequence.state is State.FINISHED:
            self._answers = min(self._answers + 1, FIRST_ANSWERS)
            length = sequence.num_tokens - sequence.num_prompt
            self._due.mean_answer += (length - self._due.mean_answer) / self._answers

    def stepped(self, rows: int, seconds: float) -> None:
        self._step_s += (seconds - self._step_s) / 8
        if not len(self._due) or seconds <= 0:
            return
        self._tokens += rows
        self._seconds += seconds
        if self._seconds > MEMORY_S:
            self._tokens /= 2
            self._seconds /= 2

    def check(self, request: Request) -> None:
        super().check(request)
        for name, target in request.service.targets().items():
            if not 0 < target <= MOST_S:
                raise RequestError(f"{name} must be above 0 and at most {1000 * MOST_S:.0f}", param=name)

    def judge(self, request: Request, ahead: Iterable[Request], now_s: float) -> None:
        if not request.service.targets():
            return
        work = dict(self._due.work_by_deadline())
        for other in ahead:
            bucket = _bucket(due_s(other))
            work[bucket] = work.get(bucket, 0.0) + self._due.tokens_of(other) * other.params.n
        late_s = self._late_s(request, sorted(work.items()), now_s)
        if late_s > 0:
            raise QueueFullError(
                f"the target of this request, or of one that waits, would be missed by about {late_s:.1f} s",
                retry_after_s=late_s,
            )

    def _late_s(self, request: Request, work: list[tuple[int, float]], now_s: float) -> float:
        """By how much the request, or one that waits and is due after it, would be too late. Below 0: none would."""
        due, own = due_s(request), self._due.tokens_of(request)
        per_token = MARGIN * self._seconds / self._tokens if self._tokens else 0.0
        before = sum(tokens for bucket, tokens in work if bucket <= _bucket(due))
        # Where others wait, all places are taken: one is free again when about as much more is computed as it needs.
        begin_s = now_s + (before + own) * per_token if work else now_s
        late_s = begin_s + 2 * self._step_s - due
        e2e_s = request.service.e2e_s
        if e2e_s is not None:
            answer_s = (own - len(request.prompt)) * self._step_s
            late_s = max(late_s, begin_s + answer_s - (request.arrival_s + e2e_s))
        until = own * request.params.n + before
        for bucket, tokens in work:
            if bucket > _bucket(due):
                until += tokens
                late_s = max(late_s, now_s + until * per_token - bucket * BUCKET_S)
        return late_s


def _bucket(time_s: float) -> int:
    return int(time_s / BUCKET_S)
