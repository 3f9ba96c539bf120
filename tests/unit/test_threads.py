"""What the system calls Legato's threads."""

import threading
from pathlib import Path

from legato.core.threads import NamedThread, named_pool


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
