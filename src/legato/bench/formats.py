"""Formats of one model beside each other: throughput in turn, and how far each is from fp32."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from legato.bench.throughput import Throughput, measure
from legato.bench.workloads import last_id_of, standard
from legato.core.config import EngineConfig, flags
from legato.core.errors import ConfigError
from legato.core.types import ExecutorInfo
from legato.engine.llm import LLM
from legato.engine.start import start

__all__ = ["Format", "FormatRun", "compare"]

_CHOICES = {flag.name: flag.choices for flag in flags(EngineConfig)}


@dataclass(frozen=True, slots=True)
class Format:
    """Numbers of the weights, and of the KV cache, as `--format` and `--kv-cache-dtype` name them."""

    weights: str
    kv_cache_dtype: str

    @classmethod
    def parse(cls, text: str) -> "Format":
        """Of WEIGHTS or WEIGHTS/KV. ConfigError for an unknown name."""
        weights, slash, kv_cache_dtype = text.partition("/")
        found = cls(weights, kv_cache_dtype if slash else "auto")
        for name, value in (("format", found.weights), ("kv_cache_dtype", found.kv_cache_dtype)):
            if value not in _CHOICES[name]:
                raise ConfigError(f"formats: {value!r} is not one of {', '.join(_CHOICES[name])}")
        return found

    def __str__(self) -> str:
        return self.weights if self.kv_cache_dtype == "auto" else f"{self.weights}/{self.kv_cache_dtype}"

    def of(self, config: EngineConfig) -> EngineConfig:
        """The configuration with these numbers."""
        return replace(
            config,
            model=replace(config.model, format=self.weights),
            cache=replace(config.cache, kv_cache_dtype=self.kv_cache_dtype),
        )


@dataclass(frozen=True, slots=True)
class FormatRun:
    """One format over the workloads, on the executor that `info` describes."""

    format: Format
    info: ExecutorInfo
    results: Sequence[Throughput]

    def to_json(self) -> dict[str, Any]:
        workloads = [result.to_json() for result in self.results]
        return {"format": str(self.format), "executor": dict(self.info.details), "workloads": workloads}


def compare(
    config: EngineConfig,
    formats: Sequence[Format],
    names: Sequence[str],
    rounds: int,
    seed: int,
    progress: Callable[[str, int, float], None],
) -> list[FormatRun]:
    """Run the named standard workloads in each format, in turn, `rounds` times; the model is opened anew each time."""
    runs: dict[Format, FormatRun] = {}
    for index in range(rounds):
        for format in formats:
            run = _once(format, config, names, seed)
            for result in run.results:
                progress(f"{format}, {result.workload}", index, result.median_s)
            runs[format] = _joined(runs[format], run) if format in runs else run
    return list(runs.values())


def _once(format: Format, config: EngineConfig, names: Sequence[str], seed: int) -> FormatRun:
    """One round, without progress of its own."""
    with LLM.over(start(format.of(config))) as llm:
        jobs = standard(seed, last_id_of(llm.info.vocab_size))
        results = measure(llm, jobs, names, 1, lambda *said: None)
        return FormatRun(format, llm.info, results)


def _joined(before: FormatRun, run: FormatRun) -> FormatRun:
    results = [
        replace(old, seconds=old.seconds + new.seconds, cached=old.cached + new.cached)
        for old, new in zip(before.results, run.results, strict=True)
    ]
    return replace(run, results=results)
