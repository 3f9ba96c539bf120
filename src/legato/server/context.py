"""What is known of the HTTP request that is being served: its id, and the trace that it is part of."""

import re
from collections.abc import Mapping
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, field

from legato.engine.timeline import Timeline
from legato.protocol.responses import Reply

__all__ = ["CURRENT", "Origin", "RequestContext", "TraceParent", "parse_traceparent"]

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True, slots=True)
class TraceParent:
    """The caller's span, by W3C Trace Context: ids in lower-case hex, flags as a number."""

    trace_id: str
    span_id: str
    flags: int


@dataclass(frozen=True, slots=True)
class RequestContext:
    """`request_id` is the client's own label, or ours where it has none.

    `trace_id` is the parent's, or where traces are made a new one.
    """

    request_id: str
    parent: TraceParent | None
    trace_id: str | None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request of the engine came from: an HTTP request, and what its answer is called.

    answered: done with the answer; how choices ended, in its words, by request id and choice.
    """

    context: RequestContext | None
    reply: Reply
    stream: bool
    answered: "Future[Mapping[tuple[str, int], str]]" = field(default_factory=Future)

    def finish_reasons(self, timeline: Timeline) -> list[str]:
        """How the choices of a request ended: what the answer said, or the engine where it said nothing of one.

        Called when it is answered.
        """
        said, request_id = self.answered.result(timeout=0), timeline.request.request_id
        return [said.get((request_id, i), finish.value) for i, finish in enumerate(timeline.finishes)]


CURRENT: ContextVar[RequestContext | None] = ContextVar("legato_request", default=None)


def parse_traceparent(header: bytes) -> TraceParent | None:
    """The parent that a `traceparent` header names. None where it is not valid: then a new trace begins."""
    match = _TRACEPARENT.fullmatch(header.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == b"ff" or (version == b"00" and more is not None):
        return None
    if not trace_id.strip(b"0") or not span_id.strip(b"0"):
        return None
    return TraceParent(trace_id.decode(), span_id.decode(), int(flags, 16))
