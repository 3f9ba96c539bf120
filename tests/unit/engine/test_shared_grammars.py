"""Grammars that several requests wait for."""

import asyncio
import threading
from typing import Any

from legato.core.config import GrammarConfig
from legato.core.grammar import Grammar
from legato.core.types import Request, SamplingParams
from legato.engine.grammars import Grammars


class SlowCompiler:
    """Compiles nothing, and not before it may."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def compile(self, grammar: Grammar) -> object:
        assert self.may_end.wait(10)
        return grammar.source

    def close(self) -> None:
        self.may_end.set()


def test_a_client_that_goes_away_cancels_its_own_wait_only() -> None:
    compiler: Any = SlowCompiler()
    grammars = Grammars(compiler, GrammarConfig())
    others = [Grammar("regex", text) for text in "bcd"]  # so many that the threads are busy, and the next has to queue

    async def wait(grammar: Grammar) -> Any:
        params = SamplingParams(grammar=grammar)
        [ready] = await grammars.all_compiled([Request("r", (1,), params, 0.0)])
        return ready.grammar

    async def run() -> None:
        busy = [asyncio.create_task(wait(grammar)) for grammar in others]
        first, second = (asyncio.create_task(wait(Grammar("regex", "a"))) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        compiler.may_end.set()
        assert first.cancelled()
        assert await second == "a"
        assert await asyncio.gather(*busy) == ["b", "c", "d"]

    asyncio.run(run())
    grammars.close()
