"""A real HTTP server on a free port, in a thread of this process, over any executor."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import openai

from legato.core.config import EngineConfig, SchedulerConfig, ServerConfig
from legato.core.types import Executor
from legato.engine.assemble import Engine, assemble
from legato.server.lifecycle import HttpServer, bind
from legato.tokenizer.assets import TextAssets

MODEL = "scripted"


@dataclass
class Running:
    """A server that answers. `api` is the official client, `http` a plain one."""

    engine: Engine
    server: HttpServer
    url: str
    api: openai.OpenAI
    http: httpx.Client

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)


@contextmanager
def serving(
    executor: Executor, assets: TextAssets, *, scheduler: SchedulerConfig | None = None, **server: Any
) -> Iterator[Running]:
    """Serve until the block ends; then the engine thread and the event loop have ended too."""
    engine = assemble(executor, assets, EngineConfig(scheduler=scheduler or SchedulerConfig()), MODEL)
    with running(engine, ServerConfig(port=0, **server)) as it:
        yield it


@contextmanager
def running(engine: Engine, config: ServerConfig) -> Iterator[Running]:
    sock = bind(config)
    ready = threading.Event()
    server = HttpServer(engine, config, ready.set)
    thread = threading.Thread(target=server.run, args=([sock],))
    thread.start()
    try:
        assert ready.wait(30)
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        with (
            httpx.Client(base_url=url, timeout=60) as http,
            openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as api,
        ):
            yield Running(engine, server, url, api, http)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
