"""Watches an engine from its loop: how many tokens came when, how many sequences ran, how full their blocks were."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from legato.engine.loop import EngineLoop
from legato.engine.outputs import Output

__all__ = ["Recorder", "Trace"]


@dataclass(slots=True)
class Trace:
    """Of one run, in seconds from its start. tokens: how many came; running: sequences in the last step.

    kv_waste: share of the allocated KV slots that hold nothing, after each step with sequences that go on.
    """

    tokens: list[tuple[float, float]] = field(default_factory=list)
    running: list[tuple[float, float]] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)  # seconds at which each request ended
    kv_waste: list[float] = field(default_factory=list)


class Recorder:
    """Stands between the loop and whoever receives its outputs. Install it when nothing runs."""

    def __init__(self, loop: EngineLoop) -> None:
        self._loop = loop
        self._next = loop.publish
        loop.publish = self
        self.restart()

    def restart(self) -> Trace:
        """Begin a new trace, and return it."""
        self.trace = Trace()
        self._start = time.perf_counter()
        return self.trace

    def __call__(self, outputs: list[Output]) -> None:
        self._note(outputs)
        self._next(outputs)

    def _note(self, outputs: Sequence[Output]) -> None:
        now = time.perf_counter() - self._start
        self.trace.tokens.append((now, float(sum(len(output.tokens) for output in outputs))))
        stats = self._loop.stats
        self.trace.running.append((now, float(stats.running)))
        if stats.slots_used:
            self.trace.kv_waste.append(stats.kv_waste)
        self.trace.ended += [now for output in outputs if output.finish is not None]
