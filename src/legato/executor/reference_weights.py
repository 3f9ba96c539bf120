"""The weights of the reference executor: a plan's tensors as float32 arrays, and the activation functions."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from legato.build.plan import Plan, Tensor
from legato.quant.dequantize import dequantize
from legato.weights.source import TensorSource

__all__ = ["ACTS", "Weights"]

Floats = npt.NDArray[np.float32]


class Weights:
    """Exact float32 values by tensor name. Tensors made of the same sources share one array."""

    def __init__(self, plan: Plan, source: TensorSource) -> None:
        by_sources: dict[tuple[str, ...], Floats] = {}
        self._arrays: dict[str, Floats] = {}
        for tensor in plan.tensors:
            if tensor.sources not in by_sources:
                by_sources[tensor.sources] = _load(tensor, source)
            self._arrays[tensor.name] = by_sources[tensor.sources]

    def matrix(self, name: str) -> Floats:
        """(n, k); an interleaved one comes as all gate rows, then all up rows."""
        return self._arrays[name]

    def vector(self, name: str) -> Floats:
        return self._arrays[name].reshape(-1)

    def clear(self) -> None:
        self._arrays.clear()


def _load(tensor: Tensor, source: TensorSource) -> Floats:
    parts = []
    for name in tensor.sources:
        raw = source.read(name)
        values = dequantize(raw.info.dtype, raw.data)
        parts.append(values.reshape(raw.info.shape))
    joined = np.concatenate(parts)
    assert joined.shape == tensor.shape, tensor.name
    return joined


def _gelu(x: Floats) -> Floats:
    """Exact GELU: x * Phi(x)."""
    erf = np.vectorize(math.erf, otypes=[np.float64])
    y: Floats = (0.5 * x * (1.0 + erf(x / math.sqrt(2.0)))).astype(np.float32)
    return y


def _gelu_tanh(x: Floats) -> Floats:
    inner = np.float32(math.sqrt(2.0 / math.pi)) * (x + np.float32(0.044715) * x**3)
    y: Floats = np.float32(0.5) * x * (1 + np.tanh(inner))
    return y


def _silu(x: Floats) -> Floats:
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, 0
        y: Floats = x / (1 + np.exp(-x))
    return y


def _relu(x: Floats) -> Floats:
    y: Floats = np.maximum(x, np.float32(0))
    return y


def _none(x: Floats) -> Floats:
    return x


ACTS: dict[str, Callable[[Floats], Floats]] = {
    "none": _none,
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
}
