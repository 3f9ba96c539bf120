"""What the system calls Legato's threads, and what is said where it has no more of them."""

import resource
import threading
from pathlib import Path

import pytest

from legato.core.errors import LegatoError
from legato.core.threads import NamedThread, named_pool, no_more_threads
from support.no_threads import refuse_threads


def known_name() -> str:
    return Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().strip()


def test_a_thread_tells_the_system_its_name() -> None:
    names: list[str] = []
    thread = NamedThread("legato-engine", lambda: names.append(known_name()))
    assert (thread.name, thread.daemon) == ("legato-engine", True)
    thread.start()
    thread.join()
    assert names == ["legato-engine"]


def test_the_threads_of_a_pool_have_its_name() -> None:
    with named_pool("legato-aside", 1) as pool:
        assert pool.submit(known_name).result() == "legato-aside_0"
    with named_pool("legato-prepare", 1) as pool:
        assert pool.submit(known_name).result() == "legato-prepare_", "15 bytes"


def test_a_thread_that_cannot_be_started_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_threads(monkeypatch, "legato-engine")
    with pytest.raises(
        LegatoError, match="cannot start the thread legato-engine: can't start new thread; this process"
    ):
        NamedThread("legato-engine", lambda: None).start()


def test_all_limits_of_threads_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soft = {resource.RLIMIT_NPROC: 4096, resource.RLIMIT_AS: 1 << 31}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft[kind], resource.RLIM_INFINITY))
    files = {
        "proc/self/cgroup": "0::/job\n",
        "sys/fs/cgroup/job/pids.max": "100\n",
        "sys/fs/cgroup/job/pids.current": "99\n",
        "sys/fs/cgroup/pids.max": "max\n",
        "proc/sys/kernel/threads-max": "192730\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    said = no_more_threads("8 compute threads", RuntimeError("no"), tmp_path)
    assert said.startswith("cannot start 8 compute threads: no; this process has ")
    limits = "pids.max 100 (99 in use), ulimit -u 4,096, ulimit -v 2,097,152, kernel.threads-max 192,730"
    assert said.endswith(f"; limits: {limits}")
