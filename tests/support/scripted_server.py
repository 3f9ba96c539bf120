"""A server with OpenAI's streaming shape that does what a script says, on a free port of this machine, in a thread."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Answer:
    """chunks: texts, one event each. first: an event before them. usage: what the last event says. end: how it ends.

    end is "done"; "cut" closes without [DONE]; "error" sends an error event; "hang" never ends.
    before: called with the number of the chunk before each is sent, and once more after the last; it may block.
    """

    chunks: tuple[str, ...] = ("a", "b", "c")
    usage: dict[str, Any] | None = field(default_factory=lambda: {"prompt_tokens": 10, "completion_tokens": 3})
    end: str = "done"
    status: int = 200
    first: Any = None
    before: Callable[[int], None] | None = None


Script = Callable[[int, dict[str, Any]], Answer]  # number of the request, its body


@dataclass
class Scripted:
    url: str
    bodies: list[dict[str, Any]]


@contextmanager
def scripted_server(script: Script) -> Iterator[Scripted]:
    loop = asyncio.new_event_loop()
    bodies: list[dict[str, Any]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if head.startswith("GET /v1/models"):
            writer.write(_whole(200, {"data": [{"id": "scripted"}]}))
        else:
            length = next(
                int(line.split(":")[1]) for line in head.lower().split("\r\n") if line.startswith("content-length")
            )
            body = json.loads(await reader.readexactly(length))
            bodies.append(body)
            async for data in _answer(script(len(bodies) - 1, body), "messages" in body, reader):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = loop.run_until_complete(asyncio.start_server(handle, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield Scripted(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", bodies)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


async def _answer(answer: Answer, chat: bool, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    if answer.status != 200:
        yield _whole(answer.status, {"error": {"message": "no"}})
        return
    yield b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    if chat:
        yield _event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    if answer.first is not None:
        yield _event(answer.first)
    for number, text in enumerate(answer.chunks):
        await _pause(answer, number)
        yield _event({"choices": [{"delta": {"content": text}} if chat else {"text": text}]})
    await _pause(answer, len(answer.chunks))
    if answer.end == "hang":
        await reader.read()  # until the client leaves
    elif answer.end == "error":
        yield _event({"error": {"message": "the model gave NaN"}})
    if answer.usage is not None:
        yield _event({"choices": [], "usage": answer.usage})
    if answer.end == "done":
        yield _piece(b"data: [DONE]\n\n")
        yield b"0\r\n\r\n"


async def _pause(answer: Answer, number: int) -> None:
    if answer.before is not None:
        await asyncio.to_thread(answer.before, number)


def _event(value: dict[str, Any]) -> bytes:
    return _piece(b"data: " + json.dumps(value).encode() + b"\n\n")


def _piece(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _whole(status: int, value: dict[str, Any]) -> bytes:
    data = json.dumps(value).encode()
    return f"HTTP/1.1 {status} X\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data
