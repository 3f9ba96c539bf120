"""An OpenTelemetry collector on a free port of this machine: it keeps the spans that are posted to it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

__all__ = ["Collector", "Span", "collecting"]


@dataclass(frozen=True)
class Span:
    """Ids in hex, "" for no parent; times in nanoseconds."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    status: int
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Collector:
    """`gate`: posts are answered once it is set. `status`: how they are answered; spans are kept for 200 only."""

    def __init__(self) -> None:
        self.url = ""
        self.gate = threading.Event()
        self.gate.set()
        self.status = 200
        self.paths: list[str] = []
        self.spans: list[Span] = []

    def take(self, path: str, body: bytes) -> int:
        self.paths.append(path)
        self.gate.wait(30)
        if self.status == 200:
            request = ExportTraceServiceRequest.FromString(body)
            self.spans += [
                _span(span, group.resource)
                for group in request.resource_spans
                for scope in group.scope_spans
                for span in scope.spans
            ]
        return self.status

    def roots(self) -> list[Span]:
        return [span for span in self.spans if span.kind == 2]

    def children(self, parent: Span) -> list[Span]:
        return [span for span in self.spans if span.parent_id == parent.span_id]


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status = collector.take(self.path, self.rfile.read(int(self.headers["content-length"])))
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield collector
    finally:
        collector.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _span(span: Any, resource: Any) -> Span:
    return Span(
        name=span.name,
        kind=span.kind,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        status=span.status.code,
        attributes={pair.key: _value(pair.value) for pair in span.attributes},
        resource={pair.key: _value(pair.value) for pair in resource.attributes},
    )


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
