"""HTTP answers in numbers, under the names of prometheus_fastapi_instrumentator, which vLLM's servers have."""

import time
from collections.abc import Sequence

from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legato.engine.instruments import Instruments

__all__ = ["CountHttp", "HttpMetrics"]

_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5),
    *(10, 30, 60),
)
_PROBES = frozenset({"/health", "/ready", "/metrics", "/load", "/ping", "/version"})  # not counted
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class HttpMetrics:
    """Counted in the event loop, when an answer has been sent or its client has gone."""

    def __init__(self, instruments: Instruments) -> None:
        self._requests = instruments.counter(
            "http_requests", "HTTP requests by method, status group and route.", ("method", "status", "handler")
        )
        self._duration_s = instruments.histogram(
            "http_request_duration_highr_seconds", "From the headers of a request to the end of its answer.", _BUCKETS
        )

    def count(self, method: str, status: int, handler: str, seconds: float) -> None:
        """handler: a route's path; "none" where there is none."""
        self._requests.add(1, method if method in _METHODS else "other", f"{status // 100}xx", handler)
        self._duration_s.observe(seconds)


class CountHttp:
    """Middleware around an application with these routes. What a client can make up becomes no label."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics, routes: Sequence[Route]) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _PROBES:
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        status = 499  # the client has gone before an answer

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        handler = self._handler(scope)
        try:
            await self._app(scope, receive, send_counted)
        finally:
            self._metrics.count(scope["method"], status, handler, time.monotonic() - began)

    def _handler(self, scope: Scope) -> str:
        for route in self._routes:
            if route.matches(scope)[0] is not Match.NONE:
                return route.path_format
        return "none"
