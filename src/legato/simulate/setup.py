"""From names and settings to a cluster that is ready to run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legato.core.config import CacheConfig, SchedulerConfig, build
from legato.core.types import ExecutorInfo
from legato.executor.memory import MemoryBudget
from legato.executor.roofline import Hardware, ModelProfile, Numbers, Roofline
from legato.executor.simulated import simulated_info
from legato.simulate.cluster import Cluster
from legato.simulate.hardware import BUILT_IN, find_hardware
from legato.simulate.model_profile import read_profile
from legato.simulate.outcome import Outcome
from legato.simulate.routers import make_router

__all__ = ["FORMATS", "Setup", "set_up"]

# Bytes per weight; int4 with three bytes beside the codes of 32 weights.
FORMATS = {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.59375}
# Bytes per value of the KV cache; int8 with a scale of 4 bytes per token and head of 64 or 128 values.
_CACHE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.05}


@dataclass(frozen=True, slots=True)
class Setup:
    """A model on a machine, with the settings of an engine."""

    model: ModelProfile
    hardware: Hardware
    numbers: Numbers
    scheduler: SchedulerConfig
    info: ExecutorInfo
    memory: MemoryBudget

    def cluster(
        self, outcome: Outcome, *, replicas: int = 1, router: str = "round-robin", leap: bool = True
    ) -> Cluster:
        """Replicas of it behind a router."""
        cost = Roofline(self.model, self.hardware, self.numbers)
        return Cluster(self.info, cost, self.scheduler, make_router(router), outcome, count=replicas, leap=leap)

    @property
    def price(self) -> float:
        """Of one replica, in currency units per hour: its share of the machine."""
        return self.hardware.price * self.numbers.devices / self.hardware.devices


def set_up(
    model: str,
    hardware: str,
    *,
    format: str = "bf16",
    tp: int | None = None,
    max_model_len: int | None = None,
    hardware_file: Path = BUILT_IN,
    **settings: Any,
) -> Setup:
    """`tp`: devices that share the model; default: all of the machine. settings: of cache and scheduler, by field name.

    Settings that are not given are those of the machine, then the engine's. ConfigError, CheckpointError.
    """
    profile = read_profile(model)
    machine, defaults = find_hardware(hardware, hardware_file)
    cache_names = set(CacheConfig.__dataclass_fields__)
    cache = build(CacheConfig, {name: value for name, value in settings.items() if name in cache_names})
    asked = {name: value for name, value in settings.items() if name not in cache_names}
    scheduler = build(SchedulerConfig, {**defaults, **asked})
    dtype = cache.kv_cache_dtype
    if dtype == "auto":
        dtype = "fp32" if format == "fp32" else "bf16"
    numbers = Numbers(format, FORMATS[format], _CACHE_BYTES[dtype], tp or machine.devices)
    info, memory = simulated_info(profile, machine, numbers, cache, scheduler, max_model_len)
    return Setup(profile, machine, numbers, scheduler, info, memory)
