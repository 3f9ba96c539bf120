"""From a plan and a checkpoint to the tensors of an engine file: fused, interleaved, padded and packed."""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

import legato._native as _native
from legato.build.engine_file import TensorRecord
from legato.build.plan import Plan, Tensor
from legato.core.errors import CheckpointError
from legato.quant.dequantize import dequantize
from legato.quant.formats import FORMATS, format_for_source
from legato.weights.source import Progress, RawTensor, TensorSource

__all__ = ["pack_tensors"]

Bytes = npt.NDArray[np.uint8]

_PANEL = 64  # output columns of a packed panel, and floats that a vector is padded to
_LINEAR, _TABLE, _VECTOR = range(3)
_TASKS_PER_THREAD = 4
_LEAST_PANELS = 16  # of a task
_F32, _F16, _BF16, _I8, _Q4, _I4 = (("f32", 0), ("f16", 1), ("bf16", 2), ("i8", 3), ("q4", 4), ("i4", 5))
_WEIGHT_TYPES = {  # format -> type of csrc/kernels/kernels.h: name in the binding, number
    "f32": _F32,
    "f16": _F16,
    "bf16": _BF16,
    "int8": _I8,
    "q8_0": _I8,
    "int4": _I4,
    "q4_0": _Q4,
    "q4_1": _Q4,
}
_TABLE_TYPES = {"f32": 0, "f16": 1, "bf16": 2, "q8_0": 3, "q4_0": 4, "q4_1": 5}


def pack_tensors(
    plan: Plan, source: TensorSource, *, threads: int, progress: Progress | None = None
) -> Iterator[tuple[TensorRecord, memoryview]]:
    """Record (without offset and hash) and bytes of each tensor of the plan, in order, one at a time.

    CheckpointError names a tensor that cannot be packed (a value that is NaN or Inf, say).
    """
    total = sum(source_bytes(tensor, source) for tensor in plan.tensors)
    done = 0
    with ThreadPoolExecutor(threads) as pool:
        workers = _Workers(pool, threads)
        for tensor in plan.tensors:
            try:
                record, data = _PACKERS[tensor.kind](tensor, [source.read(name) for name in tensor.sources], workers)
            except ValueError as error:
                what = f"cannot pack {', '.join(tensor.sources)} as {tensor.format}"
                raise CheckpointError(f"{source.config_file}: {what}: {error}") from error
            yield record, data.data
            done += source_bytes(tensor, source)
            if progress is not None:
                progress("packing weights", done, total)


def source_bytes(tensor: Tensor, source: TensorSource) -> int:
    """Bytes in the checkpoint that a tensor is made of."""
    infos = source.tensors()
    size = 0.0
    for name in tensor.sources:
        info = infos[name]
        size += math.prod(info.shape) * FORMATS[format_for_source(info.dtype)].bits / 8
    return int(size)


@dataclass(frozen=True, slots=True)
class _Workers:
    """Threads that share the panels of a tensor."""

    pool: ThreadPoolExecutor
    threads: int

    def run(self, pack: Callable[[int, int], None], panels: int) -> None:
        """pack(begin, end) for runs of panels that cover [0, panels)."""
        size = max(_LEAST_PANELS, -(-panels // (_TASKS_PER_THREAD * self.threads)))
        begins = range(0, panels, size)
        list(self.pool.map(pack, begins, [min(begin + size, panels) for begin in begins]))


def _pack_linear(tensor: Tensor, parts: list[RawTensor], workers: _Workers) -> tuple[TensorRecord, Bytes]:
    n, k = tensor.shape
    format = FORMATS[tensor.format]
    type_name, type_code = _WEIGHT_TYPES[tensor.format]
    if tensor.interleave:
        n = 2 * _padded(n // 2)
    weight = _native.describe_weight(type_name, n, k, format.group, format.zero, format.has_min)
    sources = [(part.info.dtype, np.ascontiguousarray(part.data)) for part in parts]
    out = np.empty(weight.bytes, np.uint8)

    workers.run(partial(_native.pack_weight, weight, sources, out, tensor.interleave), weight.panels)
    facts = (_LINEAR, type_code, weight.layout, n, k, weight.n_pad, weight.k_pad)
    quant = (format.group, format.zero, int(format.has_min))
    return TensorRecord(*facts, *quant, offset=0, size=weight.bytes, panel_bytes=weight.panel_bytes), out


def _pack_table(tensor: Tensor, parts: list[RawTensor], workers: _Workers) -> tuple[TensorRecord, Bytes]:
    n, k = tensor.shape
    data = np.ascontiguousarray(parts[0].data)
    facts = (_TABLE, _TABLE_TYPES[tensor.format], 0, n, k, 0, 0, 0, 0, 0)
    return TensorRecord(*facts, offset=0, size=data.nbytes, panel_bytes=data.shape[1]), data.reshape(-1)


def _pack_vector(tensor: Tensor, parts: list[RawTensor], workers: _Workers) -> tuple[TensorRecord, Bytes]:
    arrays = [dequantize(part.info.dtype, part.data).reshape(-1) for part in parts]
    if tensor.interleave:
        panels = [np.pad(a, (0, _padded(len(a)) - len(a))).reshape(-1, _PANEL) for a in arrays]
        values = np.stack(panels, axis=1).reshape(-1)
    else:
        values = np.concatenate(arrays)
    if not np.isfinite(values).all():
        raise ValueError("a value is NaN or Inf")
    n = len(values)
    data = np.pad(values, (0, _padded(n) - n)).astype("<f4").view(np.uint8)
    return TensorRecord(_VECTOR, 0, 0, n, 1, 0, 0, 0, 0, 0, offset=0, size=data.nbytes, panel_bytes=4), data


def _padded(n: int) -> int:
    return -(-n // _PANEL) * _PANEL


_PACKERS = {"linear": _pack_linear, "table": _pack_table, "vector": _pack_vector}
