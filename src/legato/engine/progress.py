"""Progress bars for downloads, builds and offline batches. Drawn on stderr, and only where it is a terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from legato.weights.source import Progress

__all__ = ["batch_progress", "byte_progress"]


def _bar(*columns: Any) -> Any:
    from rich.console import Console  # costs 70 ms, which a cached start need not pay
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


@contextmanager
def batch_progress(total: int, *, shown: bool) -> Iterator[Callable[[int, bool], None]]:
    """A bar over the requests of a batch. The callback takes the tokens that came, and whether a request ended."""
    if not shown or not sys.stderr.isatty():
        yield lambda tokens, ended: None
        return
    from rich.progress import MofNCompleteColumn, TextColumn

    started = time.monotonic()
    count = 0
    with _bar(MofNCompleteColumn(), TextColumn("{task.fields[rate]}")) as bar:
        task = bar.add_task("generating", total=total, rate="")

        def tick(tokens: int, ended: bool) -> None:
            nonlocal count
            count += tokens
            rate = count / max(time.monotonic() - started, 1e-9)
            bar.update(task, advance=int(ended), rate=f"{rate:.0f} tok/s")

        yield tick


@contextmanager
def byte_progress() -> Iterator[Progress]:
    """Bars for work counted in bytes. The callback takes what is done, the bytes done, and the bytes in all.

    Nothing is drawn, and nothing imported, before its first call.
    """
    bar: Any = None
    tasks: dict[str, Any] = {}

    def show(what: str, done: int, total: int) -> None:
        nonlocal bar
        if bar is None:
            from rich.progress import DownloadColumn, TransferSpeedColumn

            bar = _bar(DownloadColumn(), TransferSpeedColumn())
            bar.start()
        if what not in tasks:
            tasks[what] = bar.add_task(what, total=total)
        bar.update(tasks[what], completed=done, total=total)

    try:
        yield show if sys.stderr.isatty() else _say_once()
    finally:
        if bar is not None:
            bar.stop()


def _say_once() -> Progress:
    """Without a terminal: one line when a piece of work begins."""
    said: set[str] = set()

    def say(what: str, done: int, total: int) -> None:
        if what not in said:
            said.add(what)
            print(f"{what} ({total / 1e6:.0f} MB)", file=sys.stderr, flush=True)

    return say
