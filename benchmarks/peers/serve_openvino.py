"""A thin server over OpenVINO GenAI's continuous batching: streamed completions of token ids in OpenAI's shape.

python serve_openvino.py IR_DIR PORT          GET /health; POST /v1/completions, always streamed, greedy, ignore_eos

Standard library and the pipeline only. One thread runs the pipeline's steps; requests join between two of them.
"""

import asyncio
import json
import queue
import sys
import threading
from typing import Any

import openvino_genai as genai
from run_openvino import config_of, pipeline_of, tensor_of

HEAD = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\r\n"
Events = asyncio.Queue[bytes | None]


class Engine(threading.Thread):
    """Runs the pipeline. `submit` may be called from the event loop; events of a request come to its queue."""

    def __init__(self, folder: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(daemon=True)
        self._pipeline = pipeline_of(folder, {})
        self._tokenizer = self._pipeline.get_tokenizer()
        self._loop = loop
        self._new: queue.Queue[tuple[dict[str, Any], Events]] = queue.Queue()
        self._handles: dict[int, tuple[Any, Events, dict[str, Any]]] = {}
        self._next_id = 0

    def submit(self, body: dict[str, Any]) -> Events:
        events: Events = asyncio.Queue()
        self._new.put((body, events))
        return events

    def run(self) -> None:
        while True:
            self._admit(block=not self._handles)
            self._pipeline.step()
            for request_id in list(self._handles):
                self._read(request_id)

    def _admit(self, block: bool) -> None:
        while block or not self._new.empty():
            body, events = self._new.get()
            handle = self._pipeline.add_request(self._next_id, tensor_of(body["prompt"]), config_of(body["max_tokens"]))
            self._handles[self._next_id] = (handle, events, {"prompt": len(body["prompt"]), "made": 0})
            self._next_id += 1
            block = False

    def _read(self, request_id: int) -> None:
        handle, events, counts = self._handles[request_id]
        ids = (
            [token for output in handle.read().values() for token in output.generated_ids] if handle.can_read() else []
        )
        frames = []
        if ids:
            counts["made"] += len(ids)
            frames.append(_frame({"choices": [{"index": 0, "text": self._tokenizer.decode(ids)}]}))
        if handle.get_status() != genai.GenerationStatus.RUNNING:
            del self._handles[request_id]
            usage = {"prompt_tokens": counts["prompt"], "completion_tokens": counts["made"]}
            frames += [_frame({"choices": [], "usage": usage}), b"data: [DONE]\n\n", None]
        if frames:
            self._loop.call_soon_threadsafe(_put, events, frames)


def _put(events: Events, frames: list[bytes | None]) -> None:
    for frame in frames:
        events.put_nowait(frame)


def _frame(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


async def answer(engine: Engine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    writer.write(HEAD)
    if lines[0].startswith("POST "):
        length = next(int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:"))
        events = engine.submit(json.loads(await reader.readexactly(length)))
        while (frame := await events.get()) is not None:
            writer.write(frame)
            await writer.drain()
    writer.close()


async def main() -> None:
    engine = Engine(sys.argv[1], asyncio.get_running_loop())
    engine.start()
    server = await asyncio.start_server(lambda r, w: answer(engine, r, w), "127.0.0.1", int(sys.argv[2]), limit=1 << 24)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
