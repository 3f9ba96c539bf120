"""The engine loop: plan, launch, render what came before while the step computes, collect, commit."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from legato.core.config import SchedulerConfig
from legato.core.errors import LegatoError, QueueFullError, RequestError
from legato.core.types import Executor, FinishReason, Request, SamplingParams, StepPlan, StepResult, TokenEvent
from legato.engine.metrics import Metrics
from legato.engine.outputs import Output
from legato.engine.render import Renderer
from legato.engine.searches import Searches
from legato.scheduler.scheduler import Scheduler
from legato.tokenizer.tokenizer import Tokenizer

__all__ = ["EngineLoop"]

log = logging.getLogger(__name__)


class EngineLoop:
    """Owns scheduler, executor and renderer. One thread calls `step`; `submit` and `abort` may be called by any.

    `publish` receives the outputs of a step, at most once per step, in the stepping thread. After an exception in a
    step the loop is dead: every request has ended with an error, `failure` says why, and `submit` refuses.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        tokenizer: Tokenizer,
        metrics: Metrics,
        config: SchedulerConfig,
    ) -> None:
        self.publish: Callable[[list[Output]], None] = _drop
        self.failure: str | None = None
        self.stats = scheduler.stats()
        self._scheduler = scheduler
        self._executor = executor
        self.metrics = metrics
        self.max_queued = config.max_num_queued_reqs
        self._max_queued_tokens = config.max_num_queued_tokens
        self._searches = Searches(scheduler, executor.info().vocab_size)
        self._renderer = Renderer(tokenizer, scheduler.finish)
        self._events: list[TokenEvent] = []
        self._inbox: deque[Request | str] = deque()  # a request, or the id of one to abort
        self._wake = threading.Condition()
        self._stopping = False
        self._step_began: float | None = None
        metrics.watch(self.stalled_s, lambda: self.failure is None)

    # any thread

    def submit(self, requests: Sequence[Request], *, limit_tokens: bool = True) -> None:
        """Queue requests, all or none. QueueFullError when too many wait (429), or the loop has ended (503).

        RequestError for more at once than the queue ever holds, since no later time would do.
        limit_tokens: also refuse prompts that are too long together, unless none waits. They take memory, which costs
        nothing more where the caller keeps them all the same.
        """
        self.refuse_what_never_fits(requests)
        with self._wake:
            self._refuse_after_the_end()
            ahead = [message for message in self._inbox if isinstance(message, Request)]
            waiting = self.stats.waiting + _choices(ahead)
            if waiting + _choices(requests) > self.max_queued:
                self.metrics.rejected("max_num_queued_reqs")
                raise QueueFullError(f"{waiting} requests are waiting already; try again later")
            tokens = self.stats.waiting_tokens + _prompt_tokens(ahead)
            if limit_tokens and waiting and tokens + _prompt_tokens(requests) > self._max_queued_tokens:
                self.metrics.rejected("max_num_queued_tokens")
                raise QueueFullError(f"{tokens} prompt tokens are waiting already; try again later")
            self._judge(requests, ahead)
            self._inbox.extend(requests)
            self._wake.notify()

    def submit_each(self, requests: Sequence[Request], *, limit_tokens: bool = True) -> dict[str, QueueFullError]:
        """Queue requests one by one as `submit` does, without a step in between. Why each that is refused is, by id.

        QueueFullError when the loop has ended; RequestError for one that never fits. Then none is queued.
        """
        for request in requests:
            self.refuse_what_never_fits([request])
        refused = {}
        with self._wake:  # all the time: the loop takes in all of them at once
            self._refuse_after_the_end()
            for request in requests:
                try:
                    self.submit([request], limit_tokens=limit_tokens)
                except QueueFullError as error:
                    refused[request.request_id] = error
        return refused

    def refuse_what_never_fits(self, requests: Sequence[Request]) -> None:
        """RequestError for more choices at once than the queue ever holds."""
        if (asked := _choices(requests)) > self.max_queued:
            message = f"{asked} choices at once, but the queue holds {self.max_queued} (max_num_queued_reqs)"
            raise RequestError(message, param="n" if len(requests) == 1 else "prompt")

    def _refuse_after_the_end(self) -> None:
        if self.failure is not None or self._stopping:
            raise QueueFullError(self.failure or "the engine is shutting down", status=503, retry_after_s=5)

    def _judge(self, requests: Sequence[Request], ahead: Sequence[Request]) -> None:
        for index, request in enumerate(requests):
            try:
                self._scheduler.judge(request, [*ahead, *requests[:index]])
            except QueueFullError:
                self.metrics.rejected("deadline")
                raise

    def abort(self, request_id: str) -> None:
        """End a request. It gets a last output with finish reason abort, unless it has ended meanwhile."""
        with self._wake:
            self._inbox.append(request_id)
            self._wake.notify()

    def stop(self) -> None:
        """Make `run` return after the current step; requests that still run end with an error."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def stalled_s(self) -> float:
        """Seconds since the current step began; 0 between steps."""
        began = self._step_began
        return 0.0 if began is None else time.monotonic() - began

    # the engine thread

    def warm_up(self) -> None:
        """Compute one token through the whole plan, before anything else. LegatoError when that gives no number."""
        params = SamplingParams(temperature=0.0, max_tokens=1, seed=0, skip_reading_prefix_cache=True)
        self._scheduler.add(Request("warm-up", (0,), params, time.monotonic()))
        while (plan := self._scheduler.plan()) is not None:
            self._executor.launch(plan)
            for event in self._scheduler.commit(plan, self._executor.collect(plan.step_id)):
                if event.error is not None:
                    raise LegatoError(f"the model does not compute: {event.error}")

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._inbox or self._events or self._scheduler.has_work)

    def run(self) -> None:
        """Step while there is work, sleep while there is none, until `stop` or a failure."""
        while self.metrics.phases.timed("idle", self._wait):
            self._step_began = began = time.monotonic()
            try:
                self.step()
            except Exception as error:  # whatever it was, every request must get an answer
                log.exception("the engine failed")
                self._end(f"the engine failed: {type(error).__name__}: {error}")
                return
            finally:
                self._step_began = None
                self.metrics.stepped(time.monotonic() - began)
        self._end("the server is shutting down")

    def step(self) -> None:
        """One step over whatever there is to do."""
        timed = self.metrics.phases.timed
        timed("inbox", self._take_inbox)
        plan = timed("plan", self._scheduler.plan)
        if plan is not None:
            timed("launch", self._executor.launch, plan)
        timed("render", self._render)
        self._events = self._searches.through(self._scheduler.take_events())
        if plan is not None:
            result = timed("collect", self._executor.collect, plan.step_id)
            self.metrics.computed(result.times_ms)
            self._events += self._searches.through(timed("commit", self._commit, plan, result))
        elif self._scheduler.has_work and not self._events and not self._inbox:
            raise RuntimeError("requests wait but nothing can be scheduled")

    def _commit(self, plan: StepPlan, result: StepResult) -> list[TokenEvent]:
        masks = self._scheduler.refused(plan, result)
        return self._scheduler.commit(plan, self._executor.sample_again(plan, result, masks) if masks else result)

    def _take_inbox(self) -> None:
        with self._wake:
            if not self._inbox:
                return
            for message in self._inbox:
                if isinstance(message, Request):
                    self._add(message)
                elif not self._searches.abort(message):
                    self._scheduler.abort(message)
            self._inbox.clear()
            self.stats = self._scheduler.stats()  # while locked: `submit` counts each waiting request once

    def _add(self, request: Request) -> None:
        self._renderer.add(request)
        self.metrics.add(request)
        try:
            if request.beam is None:
                self._scheduler.add(request)
            else:
                self._searches.add(request)
        except LegatoError as error:
            param = error.param if isinstance(error, RequestError) else None
            self._events += [
                TokenEvent(request.request_id, i, (), finish=FinishReason.ERROR, error=str(error), error_param=param)
                for i in range(request.params.n)
            ]

    def _render(self) -> None:
        """Outputs of the events so far, to the client and the metrics."""
        outputs = self._renderer.render(self._events)
        self.stats = self._scheduler.stats()
        self.metrics.update(self.stats, self._searches.moves(self._scheduler.moves()), outputs)
        if outputs:
            self.publish(outputs)

    def _wait(self) -> bool:
        with self._wake:
            while not (self.busy or self._stopping):
                self._wake.wait()
            return not self._stopping

    def _end(self, why: str) -> None:
        with self._wake:
            self.failure = why
            late = [message for message in self._inbox if isinstance(message, Request)]
            self._inbox.clear()
        for request in late:
            self._renderer.add(request)
            self.metrics.add(request)
        outputs = self._renderer.fail(why)
        self.metrics.update(self.stats, (), outputs)
        self.publish(outputs)


def _choices(requests: Iterable[Request]) -> int:
    return sum(request.params.n for request in requests)


def _prompt_tokens(requests: Iterable[Request]) -> int:
    return sum(len(request.prompt) * request.params.n for request in requests)


def _drop(outputs: list[Output]) -> None:
    """Nobody listens (the warm-up)."""
