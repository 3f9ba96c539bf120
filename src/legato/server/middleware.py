"""Around every request: its id and trace, the count of open requests, and an error object for what nobody caught."""

import logging
import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legato.protocol.errors import describe
from legato.server.context import CURRENT, RequestContext, parse_traceparent
from legato.server.http import error_response, json_response
from legato.server.state import ServerState

__all__ = ["Envelope"]

log = logging.getLogger(__name__)

MAX_ID_LENGTH = 128


class Envelope:
    """Echoes `x-request-id` (or makes one), and answers 500 in OpenAI's shape for an unexpected exception.

    The id is the client's own label: nothing inside is keyed by it. It is cut to 128 characters; one with control
    characters or other than ASCII is refused.
    """

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given[:MAX_ID_LENGTH] or b"req-" + secrets.token_hex(12).encode()
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
                if self._state.draining:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        if not all(32 < byte < 127 for byte in request_id):
            request_id = b"refused"
            response = error_response(400, "x-request-id must be printable ASCII without spaces", code="invalid_header")
            await response(scope, receive, send_with_id)
            return
        token = CURRENT.set(self._context(request_id.decode(), headers.get(b"traceparent", b"")))
        self._state.open_requests += 1
        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            log.exception("request %s failed", request_id.decode())
            if started:
                raise
            status, body, headers = describe(error)
            await json_response(body, status, headers)(scope, receive, send_with_id)
        finally:
            self._state.open_requests -= 1
            CURRENT.reset(token)

    def _context(self, request_id: str, traceparent: bytes) -> RequestContext:
        parent = parse_traceparent(traceparent)
        new = secrets.token_hex(16) if self._state.makes_traces else None
        return RequestContext(request_id, parent, new if parent is None else parent.trace_id)
