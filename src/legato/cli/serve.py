"""`legato serve`: load a model and serve it over HTTP."""

import argparse
import json
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from legato.cli.flags import Commands, add_command, add_flags, read
from legato.cli.vllm_env import with_environment
from legato.core.config import ServeConfig, ServerConfig

if TYPE_CHECKING:
    from legato.engine.assemble import Engine

__all__ = ["add_to"]

log = logging.getLogger(__name__)


def add_to(commands: Commands) -> None:
    add_flags(add_command(commands, "serve", "serve a model over OpenAI's API", _run), ServeConfig)


def _run(args: argparse.Namespace) -> int:
    with _Interrupts().noted() as interrupts:
        return _serve(read(ServeConfig, args), interrupts)


def _serve(config: ServeConfig, interrupts: "_Interrupts") -> int:
    from legato.server.logs import set_up_logging

    quiet = config.server.web.disable_access_log_for_endpoints
    set_up_logging(config.server.log_level, config.server.log_format, quiet)
    config = with_environment(config, os.environ)
    from legato.engine.start import start
    from legato.engine.traffic import TrafficRecorder
    from legato.server.keys import ApiKeys
    from legato.server.lifecycle import bind, serve
    from legato.server.spans import check_endpoint
    from legato.server.tenants import check_tenants
    from legato.server.web import tls_options

    # What is wrong with these is said before the model loads.
    check_tenants(config)
    keys = ApiKeys.load(config.server)
    tls_options(config.server.web)
    if config.server.otlp_traces_endpoint is not None:
        check_endpoint(config.server.otlp_traces_endpoint)
    sockets = bind(config.server)
    recorder = TrafficRecorder(config.server.record_traffic) if config.server.record_traffic else None
    engine = start(config.engine)
    interrupts.check()
    ports = [sock.getsockname()[1] for sock in sockets]
    rebuild = partial(start, config.engine) if config.server.on_engine_failure == "restart" else None

    def on_ready() -> None:
        if interrupts.seen:
            signal.raise_signal(signal.SIGINT)  # the server has a handler by now
        if config.server.log_format == "json":
            log.info(
                "ready", extra={"fields": {"url": _url(config.server, config.server.host, ports[0]), **_facts(engine)}}
            )
        else:
            print(_banner(engine, config.server, ports), flush=True)

    return serve(engine, config.server, keys, sockets, on_ready, recorder, rebuild)


class _Interrupts:
    """Ctrl-C before the server has a handler: the usual exception, and a note of it.

    The exception alone may get lost: Python drops one that comes up inside a finalizer or the callback of a weak
    reference, and so may C code that runs while modules are imported.
    """

    def __init__(self) -> None:
        self.seen = False

    @contextmanager
    def noted(self) -> Iterator["_Interrupts"]:
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, before)

    def check(self) -> None:
        if self.seen:
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: object) -> None:
        self.seen = True
        raise KeyboardInterrupt


def _url(config: ServerConfig, host: str, port: int) -> str:
    scheme = "https" if config.web.ssl_certfile else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _facts(engine: "Engine") -> dict[str, str]:
    """What was loaded."""
    context = f"{engine.inputs.max_model_len:,} tokens"
    if engine.inputs.max_model_len < engine.info.max_position:
        context += f" (the KV pool holds no more; the model could {engine.info.max_position:,})"
    return {
        "model": ", ".join(engine.model_names),
        "context": context,
        "executor": engine.info.name,
        **engine.info.details,
    }


def _banner(engine: "Engine", config: ServerConfig, ports: list[int]) -> str:
    """What was loaded, where it is served, and one line to try it with."""
    url = _url(config, config.host, ports[0])
    local = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    body: dict[str, object]
    if engine.inputs.has_chat_template:
        path, body = "chat/completions", {"messages": [{"role": "user", "content": "What is the capital of Japan?"}]}
    else:
        path, body = "completions", {"prompt": "The capital of France is"}
    # Greedy and short: a small model that samples may talk nonsense until its context is full.
    body |= {"temperature": 0, "max_tokens": 64}
    key = " -H 'authorization: Bearer KEY'" if config.api_key or config.api_key_file else ""
    return "\n".join(
        [
            *([engine.memory] if engine.memory else []),
            *(f"{name.replace('_', ' '):15} {value}" for name, value in _facts(engine).items()),
            *([f"admin           {_url(config, config.admin_host, ports[1])}"] if len(ports) > 1 else []),
            f"serving at      {url}  (Ctrl-C ends it)",
            "try it:",
            f"  curl {local}/v1/{path} -H 'content-type: application/json'{key} -d '{json.dumps(body)}'",
        ]
    )
