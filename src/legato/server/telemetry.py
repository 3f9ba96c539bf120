"""What is told of requests after they have ended: spans, log lines. In a thread of its own, so that no step waits."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import ParamSpec, Protocol

from legato.core.config import ServerConfig
from legato.core.threads import NamedThread
from legato.engine.instruments import Counter, Instruments
from legato.engine.timeline import Timeline
from legato.server.context import Origin
from legato.server.logs import RequestLog
from legato.server.spans import Spans

__all__ = ["Sink", "Telemetry", "make_telemetry"]

log = logging.getLogger(__name__)
_P = ParamSpec("_P")

MAX_WAITING = 4096  # ended requests; more are dropped and counted
BATCH = 256  # requests after which a sink is flushed,
BATCH_S = 1.0  # and the time that one waits for others


class Sink(Protocol):
    """Takes what has ended. Called by one thread. An exception is logged, and loses what it was about."""

    def take(self, origin: Origin, timeline: Timeline) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None:
        """From another thread: give up what takes long."""
        ...


def make_telemetry(config: ServerConfig, instruments: Instruments) -> "Telemetry | None":
    """What the configuration asks for; None where that is nothing. ConfigError as `check_endpoint` raises it."""
    if config.otlp_traces_endpoint is None and not config.log_requests:
        return None
    outcomes = instruments.counter(
        "legato:telemetry_requests",
        "Ended requests by what became of their spans; dropped: too many waited, no log line either.",
        ("outcome",),
        [("exported",), ("failed",), ("dropped",)],
    )
    sinks: list[Sink] = [RequestLog()] if config.log_requests else []
    if config.otlp_traces_endpoint is not None:
        sinks.append(Spans(config.otlp_traces_endpoint, config, outcomes))
    return Telemetry(sinks, outcomes)


class Telemetry:
    """A bounded queue from the engine thread to the sinks. `ended` never blocks."""

    def __init__(self, sinks: Sequence[Sink], outcomes: Counter) -> None:
        """outcomes: counted by label; "dropped" here, what else in the sinks."""
        self._sinks = sinks
        self._outcomes = outcomes
        self._putting = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[Origin, Timeline] | None] = queue.SimpleQueue()
        self._thread = NamedThread("legato-spans", self._run)
        self._thread.start()

    def ended(self, origin: object, timeline: Timeline) -> None:
        """A request has ended. In the engine thread. It is told of once its answer has ended too, and says how."""
        if isinstance(origin, Origin):
            origin.answered.add_done_callback(lambda _: self._put(origin, timeline))

    def _put(self, origin: Origin, timeline: Timeline) -> None:
        """In the event loop, or where the answer ended before the engine's work, in the engine thread."""
        with self._putting:  # held for no longer than this
            if self._queue.qsize() >= MAX_WAITING:
                self._outcomes.add(1, "dropped")
            else:
                self._queue.put((origin, timeline))

    def close(self, timeout_s: float) -> None:
        """Flush what waits, for at most so long, and end the thread."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            for sink in self._sinks:
                sink.close()

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            flush_at = time.monotonic() + BATCH_S
            count = 0
            while item is not None:
                for sink in self._sinks:
                    self._guarded(sink.take, *item)
                count += 1
                if count == BATCH:
                    break
                try:
                    item = self._queue.get(timeout=max(0.0, flush_at - time.monotonic()))
                except queue.Empty:
                    break
            for sink in self._sinks:
                self._guarded(sink.flush)
            if item is None:
                return

    def _guarded(self, call: Callable[_P, None], *args: _P.args, **kwargs: _P.kwargs) -> None:
        """One request that cannot be told of does not silence those after it."""
        try:
            call(*args, **kwargs)
        except Exception:
            log.exception("telemetry failed")
            self._outcomes.add(1, "failed")
