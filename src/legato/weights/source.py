"""What every checkpoint reader offers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Progress", "RawTensor", "TensorInfo", "TensorSource"]

Progress = Callable[[str, int, int], None]  # what is done (downloading, packing), bytes done, bytes in all


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """shape is row-major (n, k), outermost first, whatever order the file uses. dtype: F32 F16 BF16 Q8_0 Q4_0 Q4_1."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: str


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor's own bytes, mapped from the file: uint8 of shape (rows, bytes per row); rows = product of shape[:-1].

    Blocks of quantized rows are in the GGUF layout (Q8_0: f16 d, 32 int8; Q4_0: f16 d, 16 bytes; Q4_1: f16 d, f16 m,
    16 bytes; low nibbles are values 0..15, high nibbles values 16..31).
    """

    info: TensorInfo
    data: npt.NDArray[np.uint8]


class TensorSource(Protocol):
    """A checkpoint. Names are canonical (Hugging Face's, also for GGUF). CheckpointError names file and tensor."""

    config: Mapping[str, Any]  # config.json keys (for GGUF: translated from its metadata)
    config_file: str  # where config came from, for messages

    def tensors(self) -> Mapping[str, TensorInfo]: ...
    def read(self, name: str) -> RawTensor: ...
    def close(self) -> None: ...
