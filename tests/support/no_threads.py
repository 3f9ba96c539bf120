"""A system that has no more threads."""

import threading

import pytest


def refuse_threads(patch: pytest.MonkeyPatch, name: str) -> None:
    """Python threads of this name cannot be started."""
    start = threading.Thread.start

    def start_others(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    patch.setattr(threading.Thread, "start", start_others)
