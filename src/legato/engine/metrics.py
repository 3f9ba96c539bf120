"""Prometheus metrics under the names that dashboards and routers for vLLM read; ours are `legato:`.

The engine thread counts; what Prometheus reads is made from the counts when it asks, in the thread that asks.
"""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest

import legato
from legato.core.config import EngineConfig
from legato.core.types import ExecutorInfo, Request
from legato.engine.instruments import Instruments, Values
from legato.engine.outputs import Output
from legato.engine.phases import Phases
from legato.engine.process_metrics import add_process_metrics
from legato.engine.request_metrics import RequestMetrics
from legato.engine.stats_metrics import StatsMetrics
from legato.scheduler.stats import Move, SchedulerStats

__all__ = ["Metrics"]

_STEP = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1, 2.5, 5, 10, 30, 60),
)


class Metrics:
    """The engine's metrics, in a registry of its own; a server may register more there."""

    def __init__(
        self, model_name: str, max_model_len: int, info: ExecutorInfo, config: EngineConfig, stats: SchedulerStats
    ) -> None:
        self.registry = CollectorRegistry()
        engine = self.instruments(model_name=model_name, engine="0")
        model = self.instruments(model_name=model_name)
        self.requests = RequestMetrics(engine, max_model_len)
        self._stats = StatsMetrics(engine, stats)
        self._engine = engine
        self.phases = Phases()
        engine.reading(
            "counter",
            "legato:loop_seconds",
            "Time of the engine thread by what it did; collect waits for the step's result.",
            self.phases.read,
            ("phase",),
        )
        self._executor_s = engine.counter("legato:executor_seconds", "Time of steps by phase.", ("phase",))
        self._step_s = engine.histogram("legato:step_duration_seconds", "Time of one turn of the engine loop.", _STEP)
        self._rejections = model.counter(
            "vllm:admission_rejections",
            "Requests refused because too much waits.",
            ("reason",),
            [("max_num_queued_reqs",), ("max_num_queued_tokens",)],
        )
        _add_facts(engine, info, config)
        add_process_metrics(self.instruments(), info.memory)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def instruments(self, **labels: str) -> Instruments:
        """A new set of instruments that have these labels, in the registry."""
        made = Instruments(tuple(labels), tuple(labels.values()))
        self.registry.register(made)
        return made

    def watch(self, step_age_s: Callable[[], float], alive: Callable[[], bool]) -> None:
        """Tell of the loop: how long its step has lasted, and whether it takes requests."""
        self._engine.reading(
            "gauge", "legato:step_age_seconds", "How long the step under way has lasted; 0 between steps.", step_age_s
        )
        self._engine.reading(
            "gauge", "legato:engine_alive", "1, or 0 once the engine has failed.", lambda: float(alive())
        )

    def text(self) -> bytes:
        """The exposition, in Prometheus' text format 0.0.4."""
        return generate_latest(self.registry)

    # the engine thread

    def add(self, request: Request) -> None:
        """A request was handed to the scheduler."""
        self.requests.add(request)

    def update(self, stats: SchedulerStats, moves: Iterable[Move], outputs: Iterable[Output]) -> None:
        """Take over the scheduler's state, who entered the batch, and the outputs of one step."""
        self._stats.update(stats)
        self.requests.moved(moves)
        self.requests.came(outputs)

    def stepped(self, seconds: float) -> None:
        """One turn of the loop took so long."""
        self._step_s.observe(seconds)

    def computed(self, times_ms: Mapping[str, float]) -> None:
        """Where the executor spent a step."""
        for phase, milliseconds in times_ms.items():
            self._executor_s.add(milliseconds / 1e3, phase)

    # any thread, one at a time

    def rejected(self, reason: str) -> None:
        """A request was refused because of this limit."""
        self._rejections.add(1, reason)


def _add_facts(engine: Instruments, info: ExecutorInfo, config: EngineConfig) -> None:
    """What does not change while the engine lives."""
    cache = {
        "block_size": info.block_size,
        "cache_dtype": info.details.get("kv_cache_dtype", config.cache.kv_cache_dtype),
        "enable_prefix_caching": config.scheduler.enable_prefix_caching,
        "gpu_memory_utilization": config.cache.memory_utilization,
        "kv_cache_memory_bytes": config.cache.kv_cache_memory,
        "num_gpu_blocks": info.num_blocks,
        "num_gpu_blocks_override": config.cache.num_blocks,
    }
    build = {
        "version": legato.__version__,
        "executor": info.name,
        **{name: info.details.get(name, "") for name in ("isa", "weights", "threads")},
    }
    sleep: Values = {("awake",): 1.0, ("weights_offloaded",): 0.0, ("discard_all",): 0.0}
    engine.reading("gauge", "vllm:cache_config_info", "The KV cache; always 1.", *_fact(cache))
    engine.reading("gauge", "vllm:engine_sleep_state", "Always awake.", lambda: sleep, ("sleep_state",))
    engine.reading("gauge", "legato:build_info", "What computes; always 1.", *_fact(build))


def _fact(labels: Mapping[str, object]) -> tuple[Callable[[], Values], tuple[str, ...]]:
    """A reading of 1 with these labels."""
    values: Values = {tuple(str(value) for value in labels.values()): 1.0}
    return lambda: values, tuple(labels)
