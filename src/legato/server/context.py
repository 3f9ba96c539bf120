"""What is known of the HTTP request that is being served: its id, and the trace that it is part of."""

import re
from contextvars import ContextVar
from dataclasses import dataclass

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
    """Where a request of the engine came from: an HTTP request, and what its answer is called."""

    context: RequestContext | None
    reply: Reply
    stream: bool


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
