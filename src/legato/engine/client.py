"""The only door to the engine for asynchronous code."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType

from legato.core.errors import LegatoError
from legato.core.threads import NamedThread
from legato.core.types import FinishReason, Request
from legato.engine.loop import EngineLoop
from legato.engine.outputs import Output
from legato.engine.timeline import Timeline
from legato.scheduler.stats import SchedulerStats

__all__ = ["EngineClient", "OutputStream"]

log = logging.getLogger(__name__)

MAX_UNREAD = 1024  # outputs per choice that may wait for a reader, on top of what its connection buffers


class OutputStream:
    """The outputs of requests that were submitted together, as they come. Leaving its context aborts what still runs.

    Iterating gives lists: all outputs since the last turn. It ends when every choice of every request has ended.
    Where nobody reads, its requests are aborted when `MAX_UNREAD` outputs per choice wait; the last one is an error.
    """

    def __init__(self, client: "EngineClient", requests: Sequence[Request]) -> None:
        self._client = client
        self._open = {request.request_id: request.params.n for request in requests}
        self._arrived: list[Output] = []
        self._most = MAX_UNREAD * sum(self._open.values())
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> "OutputStream":
        return self

    async def __anext__(self) -> list[Output]:
        if not self._arrived:
            if not self._open:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        arrived, self._arrived = self._arrived, []
        return arrived

    async def __aenter__(self) -> "OutputStream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for request_id in self._open:
            self._client.abort(request_id)
        self._open.clear()

    def deliver(self, output: Output) -> bool:
        """Take one output; True when its request has ended as a whole."""
        if output.request_id not in self._open:
            return True
        if len(self._arrived) >= self._most:
            self._give_up(output)
            return True
        self._arrived.append(output)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if output.finish is None:
            return False
        self._open[output.request_id] -= 1
        if self._open[output.request_id]:
            return False
        del self._open[output.request_id]
        return True

    def _give_up(self, output: Output) -> None:
        """End all requests; an error takes the place of this output."""
        log.warning("a client does not read its answer: %d requests are aborted", len(self._open))
        error = "the answer was not read as fast as it came"
        counted = output.num_tokens - len(output.tokens)
        last = Output(output.request_id, output.choice, "", (), counted, finish=FinishReason.ERROR, error=error)
        self._arrived.append(replace(last, num_cached=output.num_cached, num_pinned=output.num_pinned))
        for request_id in self._open:
            self._client.abort(request_id)
        self._open.clear()


class EngineClient:
    """Submit requests and receive their outputs in an event loop, while the engine runs in a thread of its own."""

    def __init__(self, loop: EngineLoop) -> None:
        self._loop = loop
        self._streams: dict[str, OutputStream] = {}
        self._origins: dict[str, object] = {}
        self._events: asyncio.AbstractEventLoop | None = None
        self._thread = NamedThread("legato-engine", loop.run)
        self.failed = asyncio.Event()
        self.on_end: Callable[[object, Timeline], None] | None = None  # called in the engine thread; set before `start`

    def start(self) -> None:
        """Start the engine thread. Called in the event loop that will submit requests. LegatoError: no more threads."""
        self._events = asyncio.get_running_loop()
        self._loop.publish = self._publish
        if self.on_end is not None:
            self._loop.metrics.requests.on_end = self._ended
        self._thread.start()

    def submit(self, requests: Sequence[Request], origin: object = None) -> OutputStream:
        """Queue requests, all or none. QueueFullError or RequestError when the engine does not take them.

        origin: what `on_end` is told with the timelines of these requests.
        """
        stream = OutputStream(self, requests)
        for request in requests if self.on_end else ():  # before the first of them can end
            self._origins[request.request_id] = origin
        try:
            self._loop.submit(requests)
        except LegatoError:
            for request in requests:
                self._origins.pop(request.request_id, None)
            raise
        for request in requests:
            self._streams[request.request_id] = stream
        return stream

    def abort(self, request_id: str) -> None:
        """End a request whose outputs nobody reads any more."""
        if request_id in self._streams:
            self._loop.abort(request_id)  # first: what is open no more, the engine knows of
            del self._streams[request_id]

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    @property
    def failure(self) -> str | None:
        """Why the engine takes no more requests; None while it does."""
        return self._loop.failure

    def stats(self) -> SchedulerStats:
        """The scheduler's counts, as of the last step."""
        return self._loop.stats

    def trouble(self, stall_timeout_s: float) -> str | None:
        """Why the engine is not alive: it failed, or one step has lasted longer than this. None when all is well."""
        if self._loop.failure is not None:
            return self._loop.failure
        stalled = self._loop.stalled_s()
        return f"a step has lasted {stalled:.0f} s" if stalled > stall_timeout_s else None

    async def stop(self, timeout_s: float = 5.0) -> bool:
        """End what still runs with an error; False when a step does not end within `timeout_s`."""
        self._loop.stop()
        if self._thread.ident is None:  # it could not be started
            return True
        await asyncio.to_thread(self._thread.join, timeout_s)
        return not self._thread.is_alive()

    def _ended(self, timeline: Timeline) -> None:
        assert self.on_end is not None
        self.on_end(self._origins.pop(timeline.request.request_id, None), timeline)

    def _publish(self, outputs: list[Output]) -> None:
        """In the engine thread: one wake-up of the event loop for all outputs of a step."""
        assert self._events is not None
        self._events.call_soon_threadsafe(self._deliver, outputs)

    def _deliver(self, outputs: list[Output]) -> None:
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None and stream.deliver(output):
                self._streams.pop(output.request_id, None)
        if self._loop.failure is not None:
            self.failed.set()
