"""Start, drain and stop: the HTTP server around one engine."""

import asyncio
import logging
import os
import resource
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import uvicorn

from legato.chat.dialect import Dialect
from legato.core.config import ServerConfig
from legato.core.errors import ConfigError, LegatoError
from legato.core.threads import named_pool
from legato.engine.assemble import Engine
from legato.engine.client import EngineClient
from legato.engine.instruments import Instruments
from legato.engine.timeline import Timeline
from legato.engine.traffic import TrafficRecorder
from legato.server.answers import ToolReadings
from legato.server.app import create_app
from legato.server.connection import Connection
from legato.server.http_metrics import HttpMetrics
from legato.server.keys import ApiKeys
from legato.server.loop_lag import BUCKETS, watch_lag
from legato.server.state import ServerState
from legato.server.telemetry import make_telemetry
from legato.server.web import tls_options

__all__ = ["HttpServer", "bind", "serve"]

log = logging.getLogger(__name__)

DEAD_ENGINE_S = 5.0  # how long /health says 503 after an engine failure before the process ends, to be restarted
KEEP_ALIVE_S = 75  # longer than load balancers keep idle connections, so that none is closed under a new request
LAST_SPANS_S = 2.0  # how long a collector may take for the last spans
RESTART_WINDOW_S = 600.0  # restarts of the engine are counted over this time
ASIDE_THREADS = 4  # for what would hold up the event loop: see scores.aside, and ends of other threads
LAST_WORDS_S = 1  # how long answers may take to reach their clients once all requests have ended


def bind(config: ServerConfig) -> list[socket.socket]:
    """Reserve the addresses, the admin port's last, before the model loads: one in use is said at once.

    Nothing listens yet.
    """
    addresses = [(config.host, config.port)]
    if config.admin_port is not None:
        addresses.append((config.admin_host, config.admin_port))
    bound: list[socket.socket] = []
    for host, port in addresses:
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        bound.append(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            for each in bound:
                each.close()
            raise _cannot_listen(f"{host} port {port}", error) from error
    return bound


def _cannot_listen(where: str, error: OSError) -> ConfigError:
    return ConfigError(f"cannot listen on {where}: {error.strerror}")


def serve(
    engine: Engine,
    config: ServerConfig,
    keys: ApiKeys,
    sockets: list[socket.socket],
    on_ready: Callable[[], None],
    recorder: TrafficRecorder | None = None,
    rebuild: Callable[[], Engine] | None = None,
) -> int:
    """Serve until a signal or an engine failure; returns the exit status. `on_ready` is called once it listens.

    sockets: as `bind` gave them. rebuild: see `HttpServer`.
    """
    _raise_file_limit()
    server = HttpServer(engine, config, keys, sockets, on_ready, recorder, rebuild)
    try:
        server.run(sockets=sockets)
    except LegatoError:
        engine.close()
        raise
    except OSError as error:  # another process, started at the same time, was faster
        engine.close()
        raise _cannot_listen(" or ".join(_shown(sock) for sock in sockets), error) from error
    if server.engine_hangs:
        log.error("a step does not end; leaving it behind")
        logging.shutdown()
        os._exit(1)
    server.engine.close()
    return server.exit_status


def _raise_file_limit() -> None:
    """Every connection is an open file, and the usual soft limit is 1,024 of them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _shown(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"{host} port {port}"


class HttpServer(uvicorn.Server):
    """uvicorn, with an engine thread beside it and our own way to end.

    The first SIGTERM or SIGINT drains: /ready and new requests answer 503, running ones get `drain_timeout` seconds,
    the rest ends with an error. The second one ends the process at once. After an engine failure the engine is made
    again, or the server ends with exit status 1 after some seconds in which /health says 503.
    """

    def __init__(
        self,
        engine: Engine,
        config: ServerConfig,
        keys: ApiKeys,
        sockets: Sequence[socket.socket],
        on_ready: Callable[[], None],
        recorder: TrafficRecorder | None = None,
        rebuild: Callable[[], Engine] | None = None,
    ) -> None:
        """rebuild: makes the engine again after it has failed; None: the server then ends."""
        self.exit_status = 0
        self.engine_hangs = False
        self._instruments = Instruments((), ())
        self._of_model = Instruments(("model_name",), engine.model_names[:1])
        self._lag = self._instruments.histogram(
            "legato:event_loop_lag_seconds", "By how much timers of the event loop come late.", BUCKETS
        )
        self._restarts = self._instruments.counter("legato:engine_restarts", "Engines made after one had failed.")
        self._telemetry = make_telemetry(config, self._instruments)
        self._recorder = recorder
        self._config = config
        self._rebuild = rebuild
        self._on_ready = on_ready
        self._tasks: set[asyncio.Task[None]] = set()
        self._use(engine)
        self._state = ServerState(
            engine,
            self.client,
            Dialect(engine.tokenizer, config.tool_call_parser, config.reasoning_parser),
            max_body_bytes=config.max_body_bytes,
            keep_alive_s=config.sse_keep_alive_interval,
            stall_timeout_s=config.stall_timeout,
            stream_interval=config.stream_interval,
            permissive_fields=config.permissive_fields,
            trust_request_chat_template=config.trust_request_chat_template,
            makes_traces=config.otlp_traces_endpoint is not None,
            readings=ToolReadings(self._of_model),
        )
        admin_port = None if config.admin_port is None else sockets[-1].getsockname()[1]
        super().__init__(
            uvicorn.Config(
                create_app(self._state, keys, config, HttpMetrics(self._instruments), admin_port),
                **tls_options(config.web),
                http=Connection,
                loop="uvloop",
                lifespan="off",
                ws="none",
                log_config=None,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=LAST_WORDS_S,
            )
        )
        # Given to the constructor, it would change the logger, of which the process has one.
        self.config.access_log = config.log_level in ("debug", "info") and not config.web.disable_uvicorn_access_log

    def _use(self, engine: Engine) -> None:
        """Take over an engine whose thread has not begun."""
        self.engine = engine
        self.client = EngineClient(engine.loop)
        for instruments in (self._instruments, self._of_model):
            engine.metrics.registry.register(instruments)
        listeners = [each.ended for each in (self._telemetry, self._recorder) if each is not None]
        if listeners:
            self.client.on_end = partial(_tell, listeners)

    def drain(self) -> None:
        """Take no new requests, and stop when the running ones have ended or their time is up. In the event loop."""
        if not self._state.draining:
            self._state.draining = True
            self._in_background(self._drain())

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.event_loop = asyncio.get_running_loop()
        self.event_loop.set_default_executor(named_pool("legato-aside", ASIDE_THREADS))
        for sock in sockets or ():
            sock.listen(self.config.backlog)  # uvloop would not say that another process listens already
        await super().startup(sockets)
        self.client.start()
        self._in_background(self._watch_engine())
        self._in_background(watch_lag(self._lag))
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self.event_loop.add_signal_handler(number, self._on_signal, number)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.engine_hangs = not await self.client.stop()
        await super().shutdown(sockets)
        self._state.close()
        if self._telemetry is not None:
            await asyncio.to_thread(self._telemetry.close, LAST_SPANS_S)
        if self._recorder is not None:
            await asyncio.to_thread(self._recorder.close)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # `startup` installs the handlers

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._state.draining:
            log.warning("%s again: ending at once", name)
            logging.shutdown()
            os._exit(128 + number)
        log.info("%s: draining %d requests", name, self._state.open_requests)
        self.drain()

    async def _drain(self) -> None:
        clock = self.event_loop.time
        deadline = clock() + self._config.drain_timeout
        while self._state.open_requests and clock() < deadline:
            await asyncio.sleep(0.02)
        if self._state.open_requests:
            log.warning("drain timeout: %d requests end with an error", self._state.open_requests)
        self.should_exit = True

    async def _watch_engine(self) -> None:
        """Restart a failed engine, or end the process, so that it is restarted from outside."""
        restarts: deque[float] = deque()
        while True:
            await self.client.failed.wait()
            if self.should_exit:
                return
            now = self.event_loop.time()
            while restarts and restarts[0] < now - RESTART_WINDOW_S:
                restarts.popleft()
            if self._rebuild is None or len(restarts) >= self._config.max_engine_restarts:
                break
            restarts.append(now)
            if not await self._restart(self._rebuild):
                break
        log.error("the engine has failed; the process ends in %.0f s", DEAD_ENGINE_S)
        self.exit_status = 1
        await asyncio.sleep(DEAD_ENGINE_S)
        self.should_exit = True

    async def _restart(self, rebuild: Callable[[], Engine]) -> bool:
        """Replace the failed engine, whose requests have ended with an error. False when that fails too."""
        log.error("the engine has failed; it is made again")
        await self.client.stop()
        try:
            self.engine.close()  # its memory is needed
            self._use(await asyncio.to_thread(rebuild))
            self.client.start()
        except Exception:  # whatever it was, the process has to end
            log.exception("the engine cannot be made again")
            return False
        self._state.use(self.engine, self.client)
        self._restarts.add()
        log.info("the engine runs again")
        return True

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # the event loop itself keeps only a weak reference
        task.add_done_callback(self._tasks.discard)


def _tell(listeners: Sequence[Callable[[object, Timeline], None]], origin: object, timeline: Timeline) -> None:
    for listener in listeners:
        listener(origin, timeline)
