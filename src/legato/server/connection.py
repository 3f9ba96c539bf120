"""A connection that bounds request heads in size and time, and the time that answers wait for their reader."""

import asyncio
import logging
from http import HTTPStatus
from typing import Any

from starlette.types import Message
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from legato.protocol.errors import error_body
from legato.protocol.responses import dump

__all__ = ["HEAD_TIMEOUT_S", "MAX_HEAD_BYTES", "READ_TIMEOUT_S", "Connection"]

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 << 10  # request line and headers; one read of the socket may come on top
HEAD_TIMEOUT_S = 30.0  # from the first byte of a head, or from the connection, to its end
READ_TIMEOUT_S = 60.0  # without room for more of an answer, after which its reader is given up


class Connection(HttpToolsProtocol):
    """Answers 431 to a head that is too large, 408 to one that is too slow, and closes; errors are JSON objects.

    The limits hold from the first byte of a request to the end of its headers; `max_body_bytes` bounds the rest. Where
    buffers are full and the client takes nothing for `READ_TIMEOUT_S`, the connection is cut. A client of HTTP/1.0 gets
    no chunked encoding.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = self.access_log and self.config.access_log  # uvicorn asks the logger alone
        self._head_bytes = 0
        self._in_head = True
        self._began = False  # a head began in the data that is being read
        self._head_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # narrowed by uvicorn
        super().connection_made(transport)
        self._start_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_read_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read_timer = self.loop.call_later(READ_TIMEOUT_S, self._not_read)

    def resume_writing(self) -> None:
        self._stop_read_timer()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._began = False
        super().data_received(data)
        behind_a_body = self._began and self.cycle is not None  # then most of `data` may belong to that body
        if self._in_head and not behind_a_body:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, f"the request line and headers are larger than {MAX_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._began = True
        self._start_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            _end_by_closing(self.cycle)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _start_head(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._stop_timer()
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._too_slow)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _not_read(self) -> None:
        log.warning("a client took nothing of its answer for %.0f s: the connection is cut", READ_TIMEOUT_S)
        self.transport.abort()

    def _too_slow(self) -> None:
        if self.scope is None:  # nothing was ever sent
            self.transport.close()
        else:
            self._refuse(408, f"the headers did not come within {HEAD_TIMEOUT_S:.0f} s")

    def _refuse(self, status: int, message: str) -> None:
        self._stop_timer()
        body = dump(error_body(status, message))
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def _end_by_closing(cycle: RequestResponseCycle) -> None:
    """HTTP/1.0 knows no chunks: an answer without a length ends with the connection, which uvicorn closes after it."""
    send = cycle.send
    cycle.chunked_encoding = False  # uvicorn then checks a length instead, set here to what each message has

    async def unframed(message: Message) -> None:
        if message["type"] == "http.response.body":
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)  # type: ignore[arg-type]  # the same messages by other names

    cycle.send = unframed  # type: ignore[method-assign, assignment]
