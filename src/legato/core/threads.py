"""Threads whose names the system knows too: /proc/PID/task/*/comm, `top -H`, debuggers.

Python itself tells them from 3.14 on. The system keeps 15 bytes.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

__all__ = ["NamedThread", "named_pool"]


class NamedThread(threading.Thread):
    """A daemon thread, not started yet."""

    def __init__(self, name: str, target: Callable[[], object]) -> None:
        super().__init__(target=target, name=name, daemon=True)

    def run(self) -> None:
        _tell_name()
        super().run()


def named_pool(name: str, threads: int) -> ThreadPoolExecutor:
    """At most so many threads, made when they are needed and kept; called `name`_0 and so on."""
    return ThreadPoolExecutor(threads, thread_name_prefix=name, initializer=_tell_name)


def _tell_name() -> None:
    with suppress(OSError):  # there is no such file beside Linux
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_bytes(threading.current_thread().name.encode())
