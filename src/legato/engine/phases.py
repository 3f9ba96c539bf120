"""Where the engine thread's time goes."""

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from legato.engine.instruments import Values

__all__ = ["PHASES", "Phases"]

PHASES = ("idle", "inbox", "plan", "launch", "render", "collect", "commit")

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Phases:
    """Seconds by phase. The one under way counts up to now, so that an hour without work is seen while it lasts.

    One thread calls `timed`, one at a time `read`. Phases do not nest.
    """

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._shown = dict(self._seconds)
        self._now: tuple[str, float] | None = None  # the phase under way, and when it began

    def timed(self, phase: str, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """What `call` returns; the time it takes counts as this phase."""
        began = time.perf_counter()
        self._now = (phase, began)
        try:
            return call(*args, **kwargs)
        finally:
            self._now = None
            self._seconds[phase] += time.perf_counter() - began

    def read(self) -> Values:
        """Never less than it was: a phase may end while it is read."""
        now, seconds = self._now, self._seconds.copy()
        if now is not None:
            seconds[now[0]] += time.perf_counter() - now[1]
        for phase, value in seconds.items():
            self._shown[phase] = max(self._shown[phase], value)
        return {(phase,): value for phase, value in self._shown.items()}
