"""Compile a grammar elsewhere first: what a client wrote may take endless time, all memory, or overflow the stack."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from legato.core.errors import QueueFullError

__all__ = ["Trial"]

_PROGRAM = Path(__file__).with_name("trial_child.py")


class Trial:
    """A child process that compiles one grammar at a time; started at first use, and again after it has died.

    Safe to use from several threads, which take turns.
    """

    def __init__(self, setup: Callable[[], Mapping[str, Any]], limit_s: float) -> None:
        """limit_s: what a grammar may take by the clock, the start of the child included.

        setup, called when the child starts: the child's first message.

        tokens: each in hex, the last one an end token. special: ids that are no text. slices: expressions of tokens
        that are taken together. limits: of LLParserLimits.
        seconds: CPU time that a grammar may take. memory: bytes of address space that it may take.
        """
        self._setup = setup
        self._limit_s = limit_s
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False

    def run(self, kind: str, text: str) -> dict[str, str]:
        """The child's answer: the grammar in llguidance's form as "grammar", or what is wrong with it as "error".

        QueueFullError (503) where nothing can be said of it: there is no child, or there is not to be one any more, or
        it has done nothing for too long.
        """
        with self._lock:
            if self._closed:
                raise QueueFullError("the engine is shutting down", status=503, retry_after_s=5)
            child, message = self._child, None
            if child is not None and child.poll() is not None:
                child = None  # it died while it had nothing to do, which is no grammar's fault
            try:
                if child is None:
                    child = self._child = _start()
                    message = self._setup()
                with _killed_after(self._limit_s, child):
                    if message is not None:
                        _send(child, message)
                    _send(child, (kind, text))
                    return _receive(child)
            except TimeoutError:
                self._child = None
                raise QueueFullError("the process that tries grammars hangs", status=503, retry_after_s=5) from None
            except (OSError, EOFError) as error:
                if child is None or self._closed:
                    why = f"the process that tries grammars cannot be started: {error}"
                    raise QueueFullError(why, status=503, retry_after_s=5) from None
                self._child = None
                return {"error": _death(child)}

    def close(self) -> None:
        """End the child. A trial that runs meanwhile fails."""
        self._closed = True
        if (child := self._child) is not None:
            child.kill()
            child.wait()


def _start() -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    command = (sys.executable, "-P", str(_PROGRAM))
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True)


@contextmanager
def _killed_after(seconds: float, child: subprocess.Popen[bytes]) -> Iterator[None]:
    """TimeoutError: the child was killed, since what it does took longer."""
    late = threading.Event()

    def kill() -> None:
        late.set()
        child.kill()

    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if late.is_set():
            child.wait()
            raise TimeoutError


def _death(child: subprocess.Popen[bytes]) -> str:
    child.kill()  # unless it is dead already
    if child.wait() == -signal.SIGPROF:
        return "it takes too long to compile (grammar_timeout)"
    return "it takes too much memory or stack to compile (max_grammar_memory)"


def _send(child: subprocess.Popen[bytes], message: object) -> None:
    assert child.stdin is not None
    data = json.dumps(message).encode()
    child.stdin.write(len(data).to_bytes(4, "little") + data)
    child.stdin.flush()


def _receive(child: subprocess.Popen[bytes]) -> dict[str, str]:
    """EOFError: the child is dead. It ends by itself when a grammar takes too much."""
    assert child.stdout is not None
    answer: dict[str, str] = json.loads(_read(child.stdout, int.from_bytes(_read(child.stdout, 4), "little")))
    return answer


def _read(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data
