"""Compiled grammars: made in threads of their own, shared by the requests that ask for the same."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from legato.core.config import GrammarConfig
from legato.core.errors import QueueFullError, RequestError
from legato.core.grammar import CompiledGrammar, Grammar
from legato.core.threads import named_pool
from legato.core.types import Request
from legato.sampling.behind import BehindReasoning
from legato.sampling.compiler import GrammarCompiler

__all__ = ["Grammars"]

MAX_COMPILING = 64  # grammars that wait for their turn or are being compiled
_THREADS = 2  # besides the engine's: one hostile grammar keeps one of them for grammar_timeout

_Result = CompiledGrammar | RequestError


class Grammars:
    """Gives requests their compiled grammar before they are submitted. Safe to use from several threads.

    Others are not kept waiting meanwhile. What was compiled last is kept, refusals too.
    """

    def __init__(self, compiler: GrammarCompiler, config: GrammarConfig) -> None:
        self._compiler = compiler
        self._size = config.grammar_cache_size
        self._results: OrderedDict[Grammar, Future[_Result]] = OrderedDict()
        self._lock = threading.Lock()
        self._threads = named_pool("legato-grammar", _THREADS)

    def compiled(self, request: Request) -> Request:
        """The request, ready to be submitted; waits for its grammar if it has one. RequestError, QueueFullError."""
        grammar = request.params.grammar
        return request if grammar is None else _with(request, self._result(grammar).result())

    async def all_compiled(self, requests: Sequence[Request]) -> list[Request]:
        """The same for several, in an event loop."""
        ready = []
        for request in requests:
            grammar = request.params.grammar
            if grammar is not None:
                # Shielded: a client that goes away must not cancel what others wait for too.
                request = _with(request, await asyncio.shield(asyncio.wrap_future(self._result(grammar))))
            ready.append(request)
        return ready

    def close(self) -> None:
        """Ends what is being compiled."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._compiler.close()

    def _result(self, grammar: Grammar) -> Future[_Result]:
        with self._lock:
            found = self._results.get(grammar)
            if found is None:
                if sum(not result.done() for result in self._results.values()) >= MAX_COMPILING:
                    raise QueueFullError(f"{MAX_COMPILING} grammars wait to be compiled; try again later")
                found = self._results[grammar] = self._threads.submit(self._compile, grammar)
                done = (grammar for grammar, result in self._results.items() if result.done())
                if len(self._results) > self._size and (oldest := next(done, None)) is not None:
                    del self._results[oldest]
            self._results.move_to_end(grammar)
            return found

    def _compile(self, grammar: Grammar) -> _Result:
        try:
            return self._compiler.compile(grammar)
        except RequestError as error:
            return error
        except BaseException:
            with self._lock:  # it says nothing of the grammar
                self._results.pop(grammar, None)
            raise


def _with(request: Request, result: _Result) -> Request:
    """RequestError: the grammar was refused. A new one each time: what is raised gathers tracebacks."""
    if isinstance(result, RequestError):
        raise RequestError(str(result), param=result.param, code=result.code)
    if request.reasoning is not None:
        return replace(request, grammar=BehindReasoning(result, request.reasoning))
    return replace(request, grammar=result)
