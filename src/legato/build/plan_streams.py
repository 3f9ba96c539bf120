"""Declared ops (see plan_declared.py) of models with several residual streams and inputs per layer (Gemma 3n)."""

from dataclasses import dataclass
from typing import ClassVar

from legato.build.plan import Op

__all__ = [
    "AltUpCorrect",
    "AltUpExpand",
    "AltUpMerge",
    "AltUpPredict",
    "AltUpSpread",
    "NormedHeadsToCache",
    "PerLayerGate",
    "PerLayerInputs",
    "QueryHeads",
    "SparseGlu",
]


@dataclass(frozen=True, slots=True)
class SparseGlu(Op):
    """out = act(relu(g - mean(g) - std(g) * q)) * u, x = [g | u] in f32, q the normal quantile of `sparsity`."""

    kind: ClassVar[str] = "sparse_glu"
    x: str
    out: str
    act: str
    sparsity: float


@dataclass(frozen=True, slots=True)
class NormedHeadsToCache(Op):
    """HeadsToCache that also norms v per head (rms, no weight)."""

    kind: ClassVar[str] = "normed_heads_to_cache"
    weights: ClassVar[tuple[str, ...]] = ("q_norm", "k_norm")
    x: str
    out: str
    q_norm: str
    k_norm: str
    eps: float
    group: int
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    rope: int


@dataclass(frozen=True, slots=True)
class QueryHeads(Op):
    """HeadsToCache of a layer that reads another's keys and values: x holds q heads only, nothing is written."""

    kind: ClassVar[str] = "query_heads"
    weights: ClassVar[tuple[str, ...]] = ("q_norm",)
    x: str
    out: str
    q_norm: str
    eps: float
    heads: int
    head_dim: int
    rope: int


@dataclass(frozen=True, slots=True)
class AltUpExpand(Op):
    """Streams from one: the first is x, each other one projection of x scaled to x's rms."""

    kind: ClassVar[str] = "altup_expand"
    weights: ClassVar[tuple[str, ...]] = ("projections",)
    x: str
    out: str
    projections: str
    streams: int


@dataclass(frozen=True, slots=True)
class AltUpPredict(Op):
    """predictions = streams + streams mixed by coefs(tanh(router(norm(first) / hidden))); out: the first prediction.

    Baykal et al. 2023, algorithm 1.
    """

    kind: ClassVar[str] = "altup_predict"
    writes: ClassVar[tuple[str, ...]] = ("predictions", "out")
    weights: ClassVar[tuple[str, ...]] = ("norm", "router", "coefs")
    x: str
    predictions: str
    out: str
    norm: str
    router: str
    coefs: str
    eps: float
    streams: int


@dataclass(frozen=True, slots=True)
class AltUpCorrect(Op):
    """streams = predictions + (x - first prediction) * (1 + coefs(tanh(router(norm(x) / hidden)))) per stream;
    first: the corrected first stream times `gain`."""

    kind: ClassVar[str] = "altup_correct"
    reads: ClassVar[tuple[str, ...]] = ("x", "predictions")
    writes: ClassVar[tuple[str, ...]] = ("out", "first")
    weights: ClassVar[tuple[str, ...]] = ("norm", "router", "coefs", "gain")
    x: str
    predictions: str
    out: str
    first: str
    norm: str
    router: str
    coefs: str
    gain: str
    eps: float
    streams: int


@dataclass(frozen=True, slots=True)
class AltUpSpread(Op):
    """Every stream of out but the first += x."""

    kind: ClassVar[str] = "altup_spread"
    reads: ClassVar[tuple[str, ...]] = ("x", "out")
    x: str
    out: str
    streams: int


@dataclass(frozen=True, slots=True)
class AltUpMerge(Op):
    """One stream from several: the mean of the first and the projected others, each scaled to the first's rms."""

    kind: ClassVar[str] = "altup_merge"
    weights: ClassVar[tuple[str, ...]] = ("projections",)
    x: str
    out: str
    projections: str
    streams: int


@dataclass(frozen=True, slots=True)
class PerLayerInputs(Op):
    """out = (out + norm(scale * x)) / sqrt(2), the norm (rms) over each layer's slice by itself."""

    kind: ClassVar[str] = "per_layer_inputs"
    reads: ClassVar[tuple[str, ...]] = ("x", "out")
    weights: ClassVar[tuple[str, ...]] = ("norm",)
    x: str
    out: str
    norm: str
    eps: float
    scale: float
    layers: int


@dataclass(frozen=True, slots=True)
class PerLayerGate(Op):
    """out = act(x) * inputs[layer's slice]. x and inputs are f32, out has any activation format."""

    kind: ClassVar[str] = "per_layer_gate"
    reads: ClassVar[tuple[str, ...]] = ("x", "inputs")
    x: str
    inputs: str
    out: str
    layer: int
    act: str
