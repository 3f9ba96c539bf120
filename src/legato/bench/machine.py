"""What this machine can do at best: multiply-adds on registers at each ISA level, and bytes read from memory."""

import os
from dataclasses import asdict, dataclass
from typing import Any

from legato import _native

__all__ = ["KINDS", "READ_BYTES", "Limits", "Peaks", "bandwidth", "default_level", "peaks", "usable_levels"]

KINDS = ("int8", "bf16", "f32")
READ_BYTES = 1 << 29  # more than any cache holds


@dataclass(frozen=True, slots=True)
class Peaks:
    """Of one level, in operations per second: a multiply-add counts two. A level without an instruction for a kind
    widens its numbers first, so its real ceiling is lower."""

    isa: str
    threads: int
    int8: float
    bf16: float
    f32: float

    def of(self, kind: str) -> float:
        return {"int8": self.int8, "bf16": self.bf16, "f32": self.f32}[kind]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def usable_levels() -> list[str]:
    """ISA levels that run here, ascending."""
    return [name for name, obstacle in _native.ops.isa_levels().items() if obstacle is None]


def default_level() -> str:
    """The level that an engine would choose here."""
    isa: str = _native.ops.choose_isa(os.environ.get("LEGATO_ISA"))
    return isa


def peaks(isa: str, threads: int, seconds: float = 0.3) -> Peaks:
    """Best of many passes within `seconds` for each kind of number."""
    limits = Limits(isa, threads)
    found = {kind: limits.peak(kind, seconds) for kind in KINDS}
    return Peaks(isa, threads, **found)


def bandwidth(isa: str, threads: int, seconds: float = 1.0, size: int = READ_BYTES) -> float:
    """Bytes per second that `threads` threads read together."""
    rate: float = _native.ops.read_bandwidth(threads=threads, bytes=size, isa=isa, min_seconds=seconds)
    return rate


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits at this moment. A share is of limits taken beside the kernel: the clock of a shared host drifts by a
    tenth and more within minutes."""

    isa: str
    threads: int

    def peak(self, kind: str, seconds: float) -> float:
        """Multiply-adds of one kind of number on registers, in operations per second."""
        rate: float = _native.ops.peak(kind, threads=self.threads, isa=self.isa, min_seconds=seconds)
        return rate

    def bandwidth(self, seconds: float) -> float:
        """Bytes read per second."""
        return bandwidth(self.isa, self.threads, seconds)
