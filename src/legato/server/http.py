"""HTTP plumbing: read a body within limits, answer with JSON or a stream, notice a client that goes away."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from legato.core.errors import LegatoError
from legato.protocol.errors import error_body, error_frame
from legato.protocol.responses import dump

__all__ = [
    "BODY_TIMEOUT_S",
    "ClientGone",
    "EventStream",
    "HttpError",
    "error_response",
    "json_response",
    "read_json_body",
    "refusal",
    "unless_gone",
]

BODY_TIMEOUT_S = 120.0  # from the headers of a request to the end of its body
COMMENT = b": keep-alive\n\n"

_T = TypeVar("_T")


class ClientGone(Exception):
    """The client closed the connection before the answer was complete."""


class HttpError(LegatoError):
    """An answer with this status and OpenAI's error object."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    data = body if isinstance(body, bytes) else dump(body)
    return Response(data, status, headers, media_type="application/json")


async def read_json_body(request: HttpRequest, limit: int) -> bytes:
    """The body, at most `limit` bytes of it (413), sent as plain application/json (415) within `BODY_TIMEOUT_S` (408).

    ClientGone where it breaks off.
    """
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        given = f", not {kind[:64]!r}" if kind else "; there is none"
        raise HttpError(415, f"content-type must be application/json{given}")
    if (coding := request.headers.get("content-encoding", "identity").lower()) != "identity":
        raise HttpError(415, f"content-encoding {coding[:64]!r} is not supported: send the body as it is")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise _too_large(limit)
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                data += chunk
                if len(data) > limit:
                    raise _too_large(limit)
    except ClientDisconnect:
        raise ClientGone from None
    except TimeoutError:
        raise _unread(408, f"the body did not come within {BODY_TIMEOUT_S:g} s") from None
    return bytes(data)


def _too_large(limit: int) -> HttpError:
    return _unread(413, f"the body is larger than {limit} bytes")


def _unread(status: int, message: str) -> HttpError:
    """The rest of the body is not read, so the connection cannot be used again."""
    return HttpError(status, message, headers={"connection": "close"})


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`; when the client closes the connection first, `work` is cancelled and ClientGone raised."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_wait_until_gone(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for each in (task, watch):
            if not each.done():
                each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A stream of server-sent events. The headers go out with the first event, so an earlier failure is a status.

    keep_alive_s: a comment goes out whenever nothing else did for so long, the headers before it; 0: none.
    """

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncGenerator[bytes, None], keep_alive_s: float = 0.0) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._frames = _with_comments(frames, keep_alive_s) if keep_alive_s else frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientGone):
            await unless_gone(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        started = False
        async with aclosing(self._frames) as frames:
            async for data in frames:
                if not started:
                    await send(start)
                    started = True
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _with_comments(frames: AsyncGenerator[bytes, None], interval_s: float) -> AsyncGenerator[bytes, None]:
    """`frames`, and a comment of server-sent events after each `interval_s` without one.

    A failure of `frames` after a comment comes too late for a status, so it becomes an error event.
    """
    commented = False
    async with aclosing(frames):
        while True:
            coming = asyncio.ensure_future(anext(frames, None))
            try:
                while not (await asyncio.wait({coming}, timeout=interval_s))[0]:
                    commented = True
                    yield COMMENT
            except BaseException:  # the reader is gone; before `frames` is closed, nobody may wait in it
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
                raise
            try:
                data = coming.result()
            except LegatoError as error:
                if not commented:
                    raise
                yield error_frame(error)
                return
            if data is None:
                return
            yield data


def error_response(
    status: int, message: str, *, code: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    return json_response(error_body(status, message, code=code), status, headers)


def refusal(error: HttpError) -> Response:
    return error_response(error.status, str(error), code=error.code, headers=error.headers)
