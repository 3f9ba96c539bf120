"""What each format of the default model must keep of fp32, its KV cache included, and the text it is measured on."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from legato.bench.quality import Quality

GOLDEN = Path(__file__).parents[1] / "golden" / "windows.npz"


@dataclass(frozen=True)
class Bar:
    kl: float
    same_top: float

    def holds(self, quality: Quality) -> bool:
        return quality.kl <= self.kl and quality.same_top >= self.same_top


BARS = {"bf16": Bar(0.002, 0.97), "int8": Bar(0.012, 0.94), "auto": Bar(0.006, 0.96)}  # auto: its own 4 bits


def windows() -> list[list[int]]:
    with np.load(GOLDEN) as file:
        return [[int(token) for token in row] for row in file["windows"]]
