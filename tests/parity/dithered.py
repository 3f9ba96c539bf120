"""A checkpoint of Q4_1 numbers with each moved at random by up to half its step, so that they lie on no 4-bit grid."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from legato.quant.dequantize import dequantize
from legato.weights.gguf_source import GgufSource
from legato.weights.source import RawTensor, TensorInfo

BLOCK, BLOCK_BYTES = 32, 20  # of Q4_1: f16 step, f16 minimum, 32 codes


class Dithered:
    """Its Q4_1 tensors are F16, and the same each time; all others are the source's own."""

    def __init__(self, source: GgufSource) -> None:
        self._source, self.config, self.config_file = source, source.config, source.config_file
        self._tensors = {
            name: replace(info, dtype="F16") if info.dtype == "Q4_1" else info
            for name, info in source.tensors().items()
        }

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    def read(self, name: str) -> RawTensor:
        raw = self._source.read(name)
        if raw.info.dtype != "Q4_1":
            return raw
        values = dequantize("Q4_1", raw.data)
        steps = raw.data.reshape(len(values), -1, BLOCK_BYTES)[..., :2].copy().view("<f2").astype(np.float32)
        moves = np.random.default_rng(sum(map(ord, name))).uniform(-0.5, 0.5, (*steps.shape[:2], BLOCK))
        moved = values.reshape(*steps.shape[:2], BLOCK) + steps * moves
        return RawTensor(self._tensors[name], moved.reshape(values.shape).astype(np.float16).view(np.uint8))

    def close(self) -> None:
        self._source.close()
