"""The scheduler: `plan` a step, `commit` its result. All else is in the modules that it calls."""

import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf
from typing import NamedTuple

from legato.core.config import SchedulerConfig
from legato.core.errors import QueueFullError, RequestError
from legato.core.types import HOST_TIER, ExecutorInfo, Request, StepPlan, StepResult, TokenEvent
from legato.scheduler.admit import admit
from legato.scheduler.commit import commit_result, end_without_token, refused_rows
from legato.scheduler.leap import commit_steady, steady_steps
from legato.scheduler.ledger import Ledger
from legato.scheduler.plan import Entry, choose_rows, write_plan
from legato.scheduler.state import Event, Sequence
from legato.scheduler.stats import Move, SchedulerStats, StepCounts, measure

__all__ = ["Scheduler"]


class _Planned(NamedTuple):
    """A step that is under way."""

    entries: list[Entry]
    began_s: float


class Scheduler:
    """Turns requests into steps, and step results into token events. One thread owns it (only `check` is free).

        scheduler.add(request)
        plan = scheduler.plan()                      # None: nothing to compute now
        events = scheduler.take_events()             # ends that need no step, such as aborts
        events = scheduler.commit(plan, result)

    `abort` and `finish` only take notes; the next plan or commit acts on them, before it does anything else. Every
    added sequence gets exactly one event with `finish` set.
    """

    def __init__(
        self, info: ExecutorInfo, config: SchedulerConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` is the one that `Request.arrival_s` was read from."""
        self._ledger = Ledger(info, config, clock)
        self._vocab_size = info.vocab_size
        self._max_queued = config.max_num_queued_reqs
        self._clock = clock
        self._asked: dict[Sequence, Event] = {}  # ends asked for from outside, in order
        self._events: list[TokenEvent] = []
        self._in_flight: dict[int, _Planned] = {}
        self._committed_s = -inf
        self._num_steps = 0
        self._planned_s = 0.0
        self._last_step = StepCounts()

    @property
    def context(self) -> int:
        """The longest possible sequence, prompt and output, in tokens."""
        return self._ledger.limits.context

    @property
    def has_work(self) -> bool:
        """Whether a sequence lives or an event waits to be taken."""
        return bool(self._ledger.sequences or self._events)

    def check(self, request: Request) -> None:
        """Refuse a request that can never be computed. Any thread.

        A prompt that leaves no room for one token is refused; `max_tokens` beyond the context is not: the sequence
        then ends with "length" at the limit.

        Raises:
            RequestError: names the field.
        """
        prompt = request.prompt
        if not prompt:
            raise RequestError("the prompt is empty", param="prompt")
        if len(prompt) >= self.context:
            raise RequestError(
                f"this model's maximum context length is {self.context} tokens, but the prompt has {len(prompt)}, "
                "which leaves no room for an answer",
                param="prompt",
                code="context_length_exceeded",
            )
        if min(prompt) < 0 or max(prompt) >= self._vocab_size:
            raise RequestError(f"prompt token ids must be between 0 and {self._vocab_size - 1}", param="prompt")
        if request.params.seed is None:
            raise RequestError("the request has no seed", param="seed")
        self._ledger.policy.check(request)

    def add(self, request: Request, *, limited: bool = True) -> None:
        """Accept a request: each choice is a sequence that waits. limited: not where too many wait already.

        Raises:
            RequestError: see `check`; or the id is that of a live request.
            QueueFullError: as many sequences wait as may, beyond those that free places will take.
        """
        self.check(request)
        if request.grammar is None and request.params.grammar is not None:
            raise RequestError("the grammar of the request is not compiled", param="grammar")
        ledger = self._ledger
        if request.request_id in ledger.sequences:
            raise RequestError(f"request {request.request_id} is already running", param="request_id")
        waiting = len(ledger.policy.queue) - (ledger.limits.max_places - ledger.places_taken)
        if limited and waiting >= self._max_queued:
            raise QueueFullError(f"{waiting} sequences are waiting, more than max_num_queued_reqs allows")
        sequences = [
            Sequence(request, choice, self.context, ledger.blocks.new_tables()) for choice in range(request.params.n)
        ]
        ledger.sequences[request.request_id] = sequences[:]
        for sequence in sequences:
            ledger.policy.queue.append(sequence)

    def judge(self, request: Request, ahead: Iterable[Request] = ()) -> None:
        """Refuse a request that would be too late under this policy. Any thread.

        ahead: others that will be added before it. QueueFullError says when to try again.
        """
        self._ledger.policy.judge(request, ahead, self._clock())

    def abort(self, request_id: str) -> None:
        """End all choices of a request with "abort". One that has ended, or never was, is left alone."""
        for sequence in self._ledger.sequences.get(request_id, ()):
            self._asked.setdefault(sequence, Event.ABORT)

    def finish(self, request_id: str, choice: int) -> None:
        """End one choice with "stop": its text holds a stop string. A token computed meanwhile is dropped."""
        for sequence in self._ledger.sequences.get(request_id, ()):
            if sequence.choice == choice and sequence.num_tokens > sequence.num_prompt:
                self._asked.setdefault(sequence, Event.STOP)

    def plan(self) -> StepPlan | None:
        """The next step, or None when there is nothing to compute until a result comes or a request is added."""
        self._planned_s = self._ledger.now_s = self._clock()
        self._ledger.moves.clear()
        self._events += self._end_asked()
        self._ledger.expire_pins()
        admit(self._ledger)
        shares = choose_rows(self._ledger)
        if not shares:
            return None
        plan, entries = write_plan(self._num_steps, shares, self._ledger.blocks)
        if copies := self._ledger.take_copies():
            plan = replace(plan, copies=copies)
        self._in_flight[plan.step_id] = _Planned(entries, self._planned_s)
        self._num_steps += 1
        self._last_step = StepCounts(
            rows=plan.num_rows,
            sequences=plan.num_seqs,
            outputs=len(plan.out_rows),
            padding=sum(share.num_rows for share in shares if share.pads) if self._ledger.policy.pads else 0,
        )
        return plan

    def refused(self, plan: StepPlan, result: StepResult) -> dict[int, bytes]:
        """Output rows of a step, still in flight, whose token their grammar does not allow, and the masks they need.

        What was sampled with those masks may be committed in its place; else the rows are computed again.
        """
        return refused_rows(self._in_flight[plan.step_id].entries, result)

    def commit(self, plan: StepPlan, result: StepResult) -> list[TokenEvent]:
        """Take in the result of a planned step. Steps are committed once each, in the order they were planned.

        ValueError: the result is another step's, or holds what no plan of this scheduler asks for.
        """
        if result.step_id != plan.step_id:
            raise ValueError(f"result of step {result.step_id} given for step {plan.step_id}")
        if result.accepted or result.drafts or result.pooled or result.transfers:
            raise ValueError(f"result of step {result.step_id} holds drafts, pooled vectors or transfers")
        planned = self._in_flight.pop(plan.step_id)
        self._measure(plan, planned, [self._clock()])
        events = self._end_asked()
        if result.lost_copies:
            self._ledger.lose(plan.copies[index] for index in result.lost_copies)
        events += commit_result(self._ledger, planned.entries, result)
        return events

    def steady_steps(self, plan: StepPlan) -> int:
        """How many steps, beginning with `plan`, the only one in flight, will give each running sequence one token.

        As long as nothing is added or asked to end. See `legato.scheduler.leap`.
        """
        return steady_steps(self._ledger, self._in_flight[plan.step_id].entries) if len(self._in_flight) == 1 else 1

    def commit_steady(self, plan: StepPlan, tokens: "list[array[int]]", ends_s: list[float]) -> list[TokenEvent]:
        """Take in that many steps at once, or fewer: for each sequence of the plan its tokens, one per step.

        ends_s: when each of the steps ended, by the clock.
        """
        planned = self._in_flight.pop(plan.step_id)
        self._measure(plan, planned, ends_s)
        events = self._end_asked()
        events += commit_steady(self._ledger, planned.entries, tokens)
        if (repeated := len(tokens[0]) - 1) > 0:
            self._num_steps += repeated
            self._last_step = StepCounts(plan.num_seqs, plan.num_seqs, plan.num_seqs)
        return events

    def take_events(self) -> list[TokenEvent]:
        """Events of `plan`, each handed out once."""
        events, self._events = self._events, []
        return events

    def moves(self) -> list[Move]:
        """Who entered the batch or was preempted when the last step was planned, in that order."""
        return [
            Move(sequence.request.request_id, sequence.choice, event is Event.ADMIT, self._planned_s)
            for sequence, event in self._ledger.moves
        ]

    def stats(self) -> SchedulerStats:
        return measure(self._ledger, self._num_steps, self._last_step, self._clock())

    def _measure(self, plan: StepPlan, planned: "_Planned", ends_s: list[float]) -> None:
        """A step lasts from its plan, or from the end of the step before it if that is later.

        Of several steps those behind the first have a row per sequence, and each a pair more per row than the one
        before. Where no step is bounded nobody asks for predictions. A step that restores blocks says nothing about
        those that do not.
        """
        began_s, self._committed_s = max(planned.began_s, self._committed_s), ends_s[-1]
        restores = any(copy.source_tier == HOST_TIER for copy in plan.copies)
        predicts = self._ledger.limits.max_step_ms > 0 and not restores
        policy = self._ledger.policy
        if not (predicts or policy.times_steps):
            return
        rows, pairs = plan.num_rows, sum(plan.positions) + plan.num_rows
        contexts = sum(plan.positions[end - 1] + 1 for end in plan.row_offsets[1:]) if len(ends_s) > 1 else 0
        for step, end_s in enumerate(ends_s):
            if step > 0:
                rows, pairs = plan.num_seqs, contexts + step * plan.num_seqs
            if policy.times_steps:
                policy.stepped(rows, end_s - began_s)
            if predicts:
                self._ledger.step_times.record(rows, pairs, 1000 * (end_s - began_s))
            began_s = end_s

    def _end_asked(self) -> list[TokenEvent]:
        if not self._asked:
            return []
        events = [end_without_token(self._ledger, sequence, event) for sequence, event in self._asked.items()]
        self._asked.clear()
        return events
