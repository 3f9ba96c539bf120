"""A real HTTP server on a free port, in a thread of this process, over any executor."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import openai

from legato.core.config import EngineConfig, SchedulerConfig, ServerConfig, build
from legato.core.types import Executor, SlotReset
from legato.engine.assemble import Engine, assemble
from legato.engine.traffic import TrafficRecorder
from legato.server.keys import ApiKeys
from legato.server.lifecycle import HttpServer, bind
from legato.tokenizer.assets import TextAssets
from support.byte_level import ASSETS, EOS, TOKENIZER

MODEL = "scripted"


class Script:
    """The script of a ScriptedExecutor: what follows a prompt; EOS after its end, and for prompts it does not know."""

    def __init__(self) -> None:
        self._by_prompt: dict[tuple[int, ...], Sequence[int]] = {}

    def set(self, prompt: str | Sequence[int], answer: Sequence[int]) -> None:
        ids = TOKENIZER.encode(prompt, parse_special=True) if isinstance(prompt, str) else prompt
        self._by_prompt[tuple(ids)] = answer

    def __call__(self, history: Sequence[int], params: SlotReset, seen: Sequence[int]) -> int:
        for length in range(len(history), 0, -1):
            answer = self._by_prompt.get(tuple(history[:length]))
            if answer is not None:
                done = len(history) - length
                return answer[done] if done < len(answer) else EOS
        return EOS


@dataclass
class Running:
    """A server that answers. `api` is the official client, `http` a plain one."""

    engine: Engine
    server: HttpServer
    url: str
    admin_url: str
    api: openai.OpenAI
    http: httpx.Client

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def complete(self, prompt: Any, **body: Any) -> dict[str, Any]:
        """A completion that works."""
        response = self.post("/v1/completions", prompt=prompt, **body)
        assert response.status_code == 200, response.text
        return strict_json(response.text)

    def stream(self, path: str, **body: Any) -> "Streamed":
        response = self.post(path, stream=True, **body)
        assert response.status_code == 200, response.text
        return Streamed(response.text)

    def wait_drained(self) -> None:
        """Oracle 5 over HTTP: nothing runs, nothing waits, no block is used."""

        def drained() -> bool:
            stats = self.server.client.stats()
            return (stats.running, stats.waiting, stats.blocks_used, self.server.client.num_open) == (0, 0, 0, 0)

        wait_until(drained)


class Streamed:
    """A whole stream of server-sent events, taken apart."""

    def __init__(self, text: str) -> None:
        frames = text.split("\n\n")
        assert frames.pop() == ""
        assert all(frame.startswith("data: ") for frame in frames)
        data = [frame.removeprefix("data: ") for frame in frames]
        self.done = data[-1] == "[DONE]"
        self.chunks = [strict_json(each) for each in (data[:-1] if self.done else data)]

    def choices(self) -> dict[int, dict[str, Any]]:
        """Per choice: joined text, finish_reason, stop_reason. Exactly one chunk has a finish_reason, the last."""
        found: dict[int, dict[str, Any]] = {}
        for chunk in self.chunks:
            for choice in chunk.get("choices", ()):
                state = found.setdefault(choice["index"], {"text": "", "finish_reason": None, "deltas": []})
                assert state["finish_reason"] is None, "a chunk after the last one"
                delta = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
                state["text"] += delta
                state["deltas"].append(delta)
                state["finish_reason"] = choice["finish_reason"]
                state["stop_reason"] = choice.get("stop_reason")
        return found

    @property
    def usage(self) -> dict[str, Any] | None:
        return self.chunks[-1].get("usage")


def strict_json(text: str) -> Any:
    """JSON as the standard has it: no NaN, no Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in JSON")

    return json.loads(text, parse_constant=refuse)


def assert_error(response: httpx.Response, status: int, *, param: str | None = None, code: str | None = None) -> str:
    """OpenAI's error object, with this status; returns the message."""
    assert response.status_code == status, response.text
    body = strict_json(response.text)
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    if param is not None:
        assert body["error"]["param"] == param, body
    if code is not None:
        assert body["error"]["code"] == code, body
    message: str = body["error"]["message"]
    return message


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Poll until something that another thread or process does has happened."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


@contextmanager
def serving(
    executor: Executor, assets: TextAssets = ASSETS, *, scheduler: SchedulerConfig | None = None, **server: Any
) -> Iterator[Running]:
    """Serve until the block ends; then the engine thread and the event loop have ended too."""
    engine = assemble(executor, assets, EngineConfig(scheduler=scheduler or SchedulerConfig()), MODEL)
    with running(engine, build(ServerConfig, {"port": 0, **server})) as it:
        yield it


@contextmanager
def running(engine: Engine, config: ServerConfig, rebuild: Callable[[], Engine] | None = None) -> Iterator[Running]:
    """Serve an engine over HTTP until the block ends."""
    sockets = bind(config)
    ready = threading.Event()
    recorder = TrafficRecorder(config.record_traffic) if config.record_traffic else None
    server = HttpServer(engine, config, ApiKeys.load(config), sockets, ready.set, recorder, rebuild)
    thread = threading.Thread(target=server.run, args=(sockets,))
    thread.start()
    try:
        assert ready.wait(30)
        url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        admin_url = f"http://127.0.0.1:{sockets[-1].getsockname()[1]}"
        with (
            httpx.Client(base_url=url, timeout=60) as http,
            openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as api,
        ):
            yield Running(engine, server, url, admin_url, api, http)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
