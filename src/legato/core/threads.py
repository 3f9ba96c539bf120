"""Threads whose names the system knows too, and what is said where there are no more of them.

The names are for /proc/PID/task/*/comm, `top -H`, debuggers. Python itself tells them from 3.14 on. The system keeps
15 bytes.
"""

import os
import resource
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from legato.core.control_groups import levels, number
from legato.core.errors import LegatoError

__all__ = ["NamedThread", "named_pool", "no_more_threads"]


class NamedThread(threading.Thread):
    """A daemon thread, not started yet."""

    def __init__(self, name: str, target: Callable[[], object]) -> None:
        super().__init__(target=target, name=name, daemon=True)

    def start(self) -> None:
        """LegatoError where the system has no more threads."""
        try:
            super().start()
        except RuntimeError as error:
            raise LegatoError(no_more_threads(f"the thread {self.name}", error)) from error

    def run(self) -> None:
        _tell_name()
        super().run()


def named_pool(name: str, threads: int) -> ThreadPoolExecutor:
    """At most so many threads, made when they are needed and kept; called `name`_0 and so on."""
    return ThreadPoolExecutor(threads, thread_name_prefix=name, initializer=_tell_name)


def no_more_threads(what: str, error: Exception, root: Path = Path("/")) -> str:
    """Says that `what` cannot be started, and why: how many threads there are, and what bounds them."""
    have = len(os.listdir("/proc/self/task"))
    limits = [
        f"pids.max {most:,} ({number(level / 'pids.current')} in use)"
        for level in levels(root, "pids")
        if (most := number(level / "pids.max")) is not None
    ]
    for name, kind, unit in (("-u", resource.RLIMIT_NPROC, 1), ("-v", resource.RLIMIT_AS, 1024)):
        if (soft := resource.getrlimit(kind)[0]) != resource.RLIM_INFINITY:
            limits.append(f"ulimit {name} {soft // unit:,}")
    if (most := number(root / "proc/sys/kernel/threads-max")) is not None:
        limits.append(f"kernel.threads-max {most:,}")
    return f"cannot start {what}: {error}; this process has {have}; limits: {', '.join(limits)}"


def _tell_name() -> None:
    with suppress(OSError):  # there is no such file beside Linux
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_bytes(threading.current_thread().name.encode())
