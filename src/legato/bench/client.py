"""A light client for one streaming completion: HTTP/1.1 over asyncio streams, and what it saw, with times.

One connection per request. Written by hand because a general client's CPU time would be taken from the server that is
measured on the same machine.
"""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from legato.core.errors import ConfigError

__all__ = ["Endpoint", "Record", "send"]

LINE_LIMIT = 1 << 20  # bytes of one line of an event stream


@dataclass(slots=True)
class Record:
    """One request as the client saw it. Times are `time.perf_counter` seconds; 0 where it did not come to that.

    chunks: when each event with choices came. Token counts are the server's usage; where it sends none, `counted` is
    False and the output is the number of chunks. error: the kind of failure, "" for success.
    """

    planned_s: float
    wanted_tokens: int
    sent_s: float = 0.0
    chunks: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    counted: bool = False
    error: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where and how to post. `chat` says which of the two shapes the answers have."""

    host: str
    port: int
    tls: bool
    path: str
    headers: Mapping[str, str]
    chat: bool

    @classmethod
    def parse(cls, base_url: str, path: str, headers: Mapping[str, str], *, chat: bool) -> "Endpoint":
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"base-url: {base_url!r} is not http://HOST:PORT")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        full = parts.path.rstrip("/") + path
        return cls(parts.hostname, port, parts.scheme == "https", full, headers, chat)

    def request(self, body: bytes) -> bytes:
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"POST {self.path} HTTP/1.1",
            f"host: {host}:{self.port}",
            "connection: close",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class _Failed(Exception):
    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(kind)
        self.kind, self.detail = kind, detail


async def send(endpoint: Endpoint, body: bytes, record: Record, timeout_s: float) -> None:
    """Send one request and fill in the record. Failures are recorded by kind, never raised."""
    record.sent_s = time.perf_counter()
    try:
        async with asyncio.timeout(timeout_s):
            await _exchange(endpoint, body, record)
    except TimeoutError:
        record.error = "timeout"
    except _Failed as failure:
        record.error, record.detail = failure.kind, failure.detail
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        record.error, record.detail = "broken stream", str(error)
    except OSError as error:
        record.error, record.detail = "broken stream" if record.chunks else "connection", str(error)
    record.ended_s = time.perf_counter()


async def _exchange(endpoint: Endpoint, body: bytes, record: Record) -> None:
    context = ssl.create_default_context() if endpoint.tls else None
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context, limit=LINE_LIMIT)
    try:
        writer.write(endpoint.request(body))
        status, headers = await _head(reader)
        chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        lines = _lines(_chunked(reader) if chunked else _plain(reader))
        if status != 200:
            raise _Failed(f"HTTP {status}", " ".join([line.decode(errors="replace") async for line in lines])[:300])
        await _events(lines, endpoint.chat, record)
    finally:
        writer.close()


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    line = await reader.readline()
    parts = line.split()
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/"):
        raise _Failed("connection", "closed without an answer" if not line else "not an HTTP answer")
    headers = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(parts[1]), headers


async def _plain(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while data := await reader.read(1 << 16):
        yield data


async def _chunked(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readline()).split(b";")[0] or b"bad", 16):
        yield (await reader.readexactly(size + 2))[:-2]


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.rstrip(b"\r")
    if rest:
        yield rest


async def _events(lines: AsyncIterator[bytes], chat: bool, record: Record) -> None:
    """Read events until [DONE]. A stream that ends before, or without any choice, has failed."""
    async for line in lines:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            break
        event = json.loads(data)
        if not isinstance(event, dict):
            raise _Failed("broken stream", "an event that is no JSON object")
        if error := event.get("error"):
            raise _Failed("error event", json.dumps(error)[:300])
        if _has_answer(event, chat, record):
            record.chunks.append(time.perf_counter())
        if usage := event.get("usage"):
            _count(usage, record)
    else:
        raise _Failed("broken stream" if record.chunks else "empty stream", "ended before [DONE]")
    if not record.chunks:
        raise _Failed("empty stream", "no choice before [DONE]")
    if not record.counted:
        record.output_tokens = len(record.chunks)


def _has_answer(event: Mapping[str, Any], chat: bool, record: Record) -> bool:
    """Whether an event counts as a chunk: one with choices, but not the role that opens a chat stream."""
    choices = event.get("choices")
    if not choices:
        return False
    if not chat or record.chunks:
        return True
    delta = choices[0].get("delta") or {}
    opens = not any(delta.get(name) for name in ("content", "reasoning", "reasoning_content", "tool_calls"))
    return not opens or choices[0].get("finish_reason") is not None


def _count(usage: Mapping[str, Any], record: Record) -> None:
    record.prompt_tokens = int(usage.get("prompt_tokens") or 0)
    record.output_tokens = int(usage.get("completion_tokens") or 0)
    record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    record.counted = True
