"""Compiled grammars are shared, kept, and waited for without blocking others."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from legato.core.config import GrammarConfig
from legato.core.errors import QueueFullError, RequestError
from legato.core.grammar import Grammar
from legato.engine import grammars as module
from legato.engine.grammars import Grammars
from support.driving import make_request


class Compiler:
    """Compiles to the source. `bad` is refused, `broken` fails; all wait for the gate."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.asked: list[str] = []

    def compile(self, grammar: Grammar) -> Any:
        self.asked.append(grammar.source)
        assert self.gate.wait(20)
        if grammar.source == "bad":
            raise RequestError("bad grammar", param=grammar.param)
        if grammar.source == "broken":
            raise QueueFullError("no process")
        return grammar.source

    def close(self) -> None:
        self.gate.set()


@pytest.fixture
def compiler() -> Compiler:
    return Compiler()


@pytest.fixture
def grammars(compiler: Compiler) -> Iterator[Grammars]:
    made = Grammars(compiler, GrammarConfig(grammar_cache_size=2))  # type: ignore[arg-type]
    yield made
    made.close()


def asking(source: str | None) -> Any:
    grammar = None if source is None else Grammar("regex", source)
    return make_request("r", [1], grammar=grammar)


def test_what_was_compiled_last_is_kept_refusals_too(grammars: Grammars, compiler: Compiler) -> None:
    compiler.gate.set()
    for source in ("a", "a", "bad", "bad", "a", "c", "a", "bad"):
        if source == "bad":
            with pytest.raises(RequestError, match="bad grammar"):
                grammars.compiled(asking(source))
        else:
            assert grammars.compiled(asking(source)).grammar == source
    assert compiler.asked == ["a", "bad", "c", "bad"]
    assert grammars.compiled(asking(None)) == asking(None)


def test_a_failure_that_says_nothing_of_the_grammar_is_not_kept(grammars: Grammars, compiler: Compiler) -> None:
    compiler.gate.set()
    for _ in range(2):
        with pytest.raises(QueueFullError):
            grammars.compiled(asking("broken"))
    assert compiler.asked == ["broken", "broken"]


def test_one_compilation_serves_all_who_wait_and_survives_one_that_leaves(
    grammars: Grammars, compiler: Compiler
) -> None:
    async def run() -> list[Any]:
        waiting = [asyncio.create_task(grammars.all_compiled([asking(None), asking("a")])) for _ in range(3)]
        while not compiler.asked:
            await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        compiler.gate.set()
        return await asyncio.gather(*waiting, return_exceptions=True)

    left, *others = asyncio.run(run())
    assert isinstance(left, asyncio.CancelledError)
    assert [[request.grammar for request in requests] for requests in others] == [[None, "a"]] * 2
    assert compiler.asked == ["a"]


def test_too_many_that_wait_are_refused(
    grammars: Grammars, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_COMPILING", 3)

    async def run() -> list[Any]:
        tasks = [asyncio.create_task(grammars.all_compiled([asking(source)])) for source in "abcd"]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        compiler.gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    *first, last = asyncio.run(run())
    assert [requests[0].grammar for requests in first] == ["a", "b", "c"]
    assert isinstance(last, QueueFullError)


def test_the_field_is_named_whoever_asked_first(grammars: Grammars, compiler: Compiler) -> None:
    compiler.gate.set()
    for param in ("response_format", "structured_outputs.regex"):
        request = asking("bad")
        request = replace(request, params=replace(request.params, grammar=Grammar("regex", "bad", param)))
        with pytest.raises(RequestError) as caught:
            grammars.compiled(request)
        assert caught.value.param == param
