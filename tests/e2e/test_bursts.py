"""Many requests at once: the event loop goes on between them."""

import asyncio
import threading

from harness import MODEL, Script, running

from legato.core.config import EngineConfig, ServerConfig
from legato.engine.assemble import assemble
from legato.server.scores import aside
from support.byte_level import ASSETS, VOCAB
from support.scripted import ScriptedExecutor


def test_the_event_loop_turns_between_small_bodies_that_come_at_once() -> None:
    engine = assemble(ScriptedExecutor(vocab_size=VOCAB, emit=Script()), ASSETS, EngineConfig(), MODEL)
    with running(engine, ServerConfig(port=0)) as server:
        state = server.server._state
        seen: list[str] = []

        async def tick() -> None:
            while True:
                seen.append("turn")
                await asyncio.sleep(0)

        async def burst() -> list[int]:
            ticks = asyncio.ensure_future(tick())
            bodies = [str(number).encode() for number in range(20)]
            made = await asyncio.gather(
                *(state.prepare(lambda data: seen.append("made") or int(data), b) for b in bodies)
            )
            ticks.cancel()
            return made

        made = asyncio.run_coroutine_threadsafe(burst(), server.server.event_loop).result(20)
        assert made == list(range(20)), "in the order that they came"
        assert seen.count("made") == 20
        assert "made made" not in " ".join(seen)


def test_bodies_that_may_bring_a_template_are_prepared_aside_of_the_event_loop() -> None:
    """However small: a template may work for seconds."""
    engine = assemble(ScriptedExecutor(vocab_size=VOCAB, emit=Script()), ASSETS, EngineConfig(), MODEL)
    with running(engine, ServerConfig(port=0, trust_request_chat_template=True)) as server:
        made = server.server._state.prepare(lambda data: threading.current_thread().name, b"{}")
        name = asyncio.run_coroutine_threadsafe(made, server.server.event_loop).result(20)
        assert name.startswith("legato-prepare")
        made = aside(True, lambda: threading.current_thread().name)
        name = asyncio.run_coroutine_threadsafe(made, server.server.event_loop).result(20)
        assert name.startswith("legato-aside")
