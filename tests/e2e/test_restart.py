"""F01: after an engine failure the engine is made again, a bounded number of times, or the process ends."""

from collections.abc import Callable
from contextlib import closing

import pytest
from harness import MODEL, Running, Script, assert_error, running, wait_until

from legato.core.config import EngineConfig, ServerConfig
from legato.core.errors import LegatoError
from legato.engine.assemble import Engine, assemble
from legato.server.keys import ApiKeys
from legato.server.lifecycle import bind, serve
from support.byte_level import ASSETS, VOCAB, byte_tokens
from support.no_threads import refuse_threads
from support.scripted import ScriptedExecutor


class Factory:
    """Makes engines, and keeps their executors. Those of `bad` numbers fail in their first step."""

    def __init__(self, *bad: int) -> None:
        self.executors: list[ScriptedExecutor] = []
        self._bad = bad

    def __call__(self) -> Engine:
        script = Script()
        script.set("hi", byte_tokens("fine"))
        executor = ScriptedExecutor(vocab_size=VOCAB, emit=script)
        if len(self.executors) in self._bad:
            executor.failing_steps = {0}
        assert all(before.closed for before in self.executors), "the memory of the one before is free"
        self.executors.append(executor)
        return assemble(executor, ASSETS, EngineConfig(), MODEL)


def test_f01_where_there_are_no_more_threads_the_process_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("legato.server.lifecycle.DEAD_ENGINE_S", 0.0)
    make = Factory(0)

    def rebuild() -> Engine:
        refuse_threads(monkeypatch, "legato-engine")
        return make()

    with running(make(), ServerConfig(port=0), rebuild) as server:
        assert_error(server.post("/v1/completions", prompt="hi"), 503)
        wait_until(lambda: server.server.should_exit)
        assert server.server.exit_status == 1
    assert "cannot start the thread legato-engine: can't start new thread; this process has" in caplog.text


def test_where_there_are_no_more_threads_the_start_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Factory()
    engine, config = make(), ServerConfig(port=0)
    sockets = bind(config)
    refuse_threads(monkeypatch, "legato-engine")
    with closing(sockets[0]), pytest.raises(LegatoError, match="cannot start the thread legato-engine"):
        serve(engine, config, ApiKeys.load(config), sockets, lambda: None)
    assert make.executors[0].closed


def count_restarts(server: Running) -> float | None:
    return server.server.engine.metrics.registry.get_sample_value("legato:engine_restarts_total")


def test_f01_the_engine_is_made_again() -> None:
    make = Factory(0, 1)
    with running(make(), ServerConfig(port=0), make) as server:
        for number in (1, 2):
            assert "failed as told" in assert_error(server.post("/v1/completions", prompt="hi", stream=True), 503)
            wait_until(lambda n=number: len(make.executors) == n + 1)  # type: ignore[misc]
            wait_until(lambda: server.http.get("/ready").status_code == 200)
        assert server.complete("hi")["choices"][0]["text"] == "fine"
        assert count_restarts(server) == 2
        assert server.http.get("/health").status_code == 200
        server.wait_drained()
        assert server.server.exit_status == 0


@pytest.mark.parametrize("most", [1, 2])
def test_f01_it_is_not_made_again_and_again(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legato.server.lifecycle.DEAD_ENGINE_S", 0.0)
    make = Factory(*range(10))
    with running(make(), ServerConfig(port=0, max_engine_restarts=most), make) as server:
        for number in range(most + 1):
            wait_until(lambda n=number: len(make.executors) == n + 1)  # type: ignore[misc]
            wait_until(lambda: server.http.get("/ready").status_code == 200)
            assert_error(server.post("/v1/completions", prompt="hi"), 503)
        wait_until(lambda: server.server.should_exit)
        assert server.server.exit_status == 1
        assert len(make.executors) == most + 1


@pytest.mark.parametrize("error", [OSError("no memory"), RuntimeError()])
def test_f01_what_cannot_be_made_again_ends_the_process(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("legato.server.lifecycle.DEAD_ENGINE_S", 0.0)
    make = Factory(0)

    def fail() -> Engine:
        raise error

    rebuild: Callable[[], Engine] = fail
    with running(make(), ServerConfig(port=0), rebuild) as server:
        assert_error(server.post("/v1/completions", prompt="hi"), 503)
        wait_until(lambda: server.server.should_exit)
        assert server.server.exit_status == 1
    assert "cannot be made again" in caplog.text
