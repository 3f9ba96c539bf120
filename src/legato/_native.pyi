"""What Python uses of the extension module; csrc/bindings/ is the source. `ops` is for tests and benchmarks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from legato.core.types import StepPlan

ops: Any

class EngineFileError(ValueError): ...
class ThreadError(RuntimeError): ...

class Weight:
    type: str
    n: int
    k: int
    n_pad: int
    k_pad: int
    group: int
    zero: int
    has_min: bool
    layout: int
    panel_bytes: int
    panels: int
    bytes: int

def describe_weight(type: str, n: int, k: int, group: int = 0, zero: int = 0, has_min: bool = False) -> Weight: ...
def pack_weight(
    weight: Weight,
    sources: Sequence[tuple[str, npt.NDArray[np.uint8]]],
    out: npt.NDArray[np.uint8],
    interleave: bool = False,
    panel_begin: int = 0,
    panel_end: int = -1,
) -> None: ...
def dequantize(source: str, rows: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None: ...
def unpack_columns(
    weight: Weight, packed: npt.NDArray[np.uint8], column_begin: int, out: npt.NDArray[np.float32]
) -> None: ...

class RuntimeOptions:
    isa: str
    @staticmethod
    def make(
        isa: str,
        kv_dtype: str,
        block_size: int,
        num_blocks: int,
        max_rows: int,
        max_seqs: int,
        max_position: int,
        threads: int,
        prefault_kv: bool = False,
    ) -> RuntimeOptions: ...

class EngineFile:
    @staticmethod
    def open(path: str) -> EngineFile: ...
    @staticmethod
    def check(data: bytes) -> None: ...
    def memory(self, options: RuntimeOptions) -> dict[str, Any]: ...

class Runtime:
    def __init__(self, file: EngineFile, options: RuntimeOptions) -> None: ...
    def launch(self, plan: StepPlan) -> None: ...
    def collect(self, step_id: int) -> dict[str, Any]: ...
    def sample_again(self, rows: Sequence[tuple[int, int, int, bytes]]) -> dict[str, Any]: ...
    def num_kept_logits(self) -> int: ...
    def logits(self) -> bytes: ...
    def read_block(self, group: int, index: int) -> bytes: ...
    def write_block(self, group: int, index: int, data: bytes) -> None: ...
    def profile(self) -> dict[str, int]: ...
    def reset_profile(self) -> None: ...
