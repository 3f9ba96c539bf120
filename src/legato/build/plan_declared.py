"""Ops that plans may hold but that no executor runs yet: what the families beyond the running ones need.

Each becomes a running op by a reference, kernels and a move to `legato.build.plan`; lowering and specs stay.
The ops of models with several residual streams are in plan_streams.py.
"""

from dataclasses import dataclass
from typing import ClassVar

from legato.build.plan import Op

__all__ = [
    "Add",
    "AlibiAttention",
    "AxisHeadsToCache",
    "ClampedExperts",
    "Convert",
    "EmbedAdd",
    "EncoderAttention",
    "Experts",
    "LatentAttention",
    "LatentToCache",
    "Pool",
    "RouteGrouped",
    "RouteTopK",
    "SinkAttention",
    "SoftCap",
    "StateSpace",
]


# ------------------------------------------------------------------------------------------------- row operations


@dataclass(frozen=True, slots=True)
class Add(Op):
    """out = keep * out + scale * x. Both f32."""

    kind: ClassVar[str] = "add"
    reads: ClassVar[tuple[str, ...]] = ("x", "out")
    x: str
    out: str
    keep: float = 1.0
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Convert(Op):
    """out = x in out's activation format. x is f32."""

    kind: ClassVar[str] = "convert"
    x: str
    out: str


@dataclass(frozen=True, slots=True)
class EmbedAdd(Op):
    """out[r] += table[i of row r], i its "position" or its "segment" (0 in a single text). out is f32."""

    kind: ClassVar[str] = "embed_add"
    reads: ClassVar[tuple[str, ...]] = ("out",)
    weights: ClassVar[tuple[str, ...]] = ("table",)
    out: str
    table: str
    index: str


@dataclass(frozen=True, slots=True)
class SoftCap(Op):
    """out = cap * tanh(x / cap). Both f32."""

    kind: ClassVar[str] = "soft_cap"
    x: str
    out: str
    cap: float


@dataclass(frozen=True, slots=True)
class Pool(Op):
    """The pooled vector of a sequence: out = tanh(x). Both f32, out domain."""

    kind: ClassVar[str] = "pool"
    x: str
    out: str


# ------------------------------------------------------------------------------------------------------ attention


@dataclass(frozen=True, slots=True)
class AxisHeadsToCache(Op):
    """HeadsToCache whose positions have one axis per section; pair i turns by the axis of the section i falls in."""

    kind: ClassVar[str] = "axis_heads_to_cache"
    x: str
    out: str
    group: int
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    rope: int
    sections: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AlibiAttention(Op):
    """Attention with slopes[h] * (p - row) added to the score of position p."""

    kind: ClassVar[str] = "alibi_attention"
    x: str
    out: str
    group: int
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    slopes: tuple[float, ...]
    window: int | None = None


@dataclass(frozen=True, slots=True)
class SinkAttention(Op):
    """Attention whose softmax has one more entry per head, of score sinks[h] and value 0."""

    kind: ClassVar[str] = "sink_attention"
    weights: ClassVar[tuple[str, ...]] = ("sinks",)
    x: str
    out: str
    sinks: str
    group: int
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None


@dataclass(frozen=True, slots=True)
class EncoderAttention(Op):
    """Every row of a sequence sees every other; all its rows are in one step. x = [q heads | k heads | v heads]."""

    kind: ClassVar[str] = "encoder_attention"
    x: str
    out: str
    heads: int
    head_dim: int
    scale: float


@dataclass(frozen=True, slots=True)
class LatentToCache(Op):
    """x = [latent of `rank` | key part of rope_dim]: norm the latent (rms), rotate the key part, write both to the
    cache. q heads of [nope_dim | rope_dim]: rotate the last part, to out."""

    kind: ClassVar[str] = "latent_to_cache"
    reads: ClassVar[tuple[str, ...]] = ("x", "q")
    weights: ClassVar[tuple[str, ...]] = ("norm",)
    x: str
    q: str
    out: str
    norm: str
    eps: float
    group: int
    layer: int
    heads: int
    nope_dim: int
    rope_dim: int
    rank: int
    rope: int


@dataclass(frozen=True, slots=True)
class LatentAttention(Op):
    """Attention over cached latents c and key parts r: k = [up_k c | r], v = up_v c, up = heads * [up_k, up_v].

    DeepSeek-V2 report, section 2.1. x: q heads; out: heads * value_dim.
    """

    kind: ClassVar[str] = "latent_attention"
    weights: ClassVar[tuple[str, ...]] = ("up",)
    x: str
    out: str
    up: str
    group: int
    layer: int
    heads: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    rank: int
    scale: float


@dataclass(frozen=True, slots=True)
class StateSpace(Op):
    """Mamba-2's mixer between its two projections (Dao and Gu 2024, section 7).

    x = [gate | conv inputs x, B, C | dt]. Causal convolution and silu with the last kernel - 1 inputs as state; the
    recurrence h = exp(dt * -exp(a_log)) h + dt B x, y = C h + d x; out = rms norm of y * silu(gate). The state of a
    sequence slot is one layer of cache group `group`. Prefill is cut at multiples of `chunk`.
    """

    kind: ClassVar[str] = "state_space"
    weights: ClassVar[tuple[str, ...]] = ("conv", "conv_bias", "a_log", "d", "dt_bias", "norm")
    x: str
    out: str
    conv: str
    conv_bias: str
    a_log: str
    d: str
    dt_bias: str
    norm: str
    eps: float
    group: int
    layer: int
    heads: int
    head_dim: int
    state: int
    groups: int
    kernel: int
    chunk: int


# -------------------------------------------------------------------------------------------------------- experts


@dataclass(frozen=True, slots=True)
class RouteTopK(Op):
    """The top_k largest of x (router logits) and their softmax over all, or with `normalize` over those chosen.

    out: top_k expert ids, then top_k weights, f32.
    """

    kind: ClassVar[str] = "route_top_k"
    x: str
    out: str
    top_k: int
    normalize: bool


@dataclass(frozen=True, slots=True)
class RouteGrouped(Op):
    """s = sigmoid(x). By s + bias: the top_groups groups with the largest sum of two, then their top_k experts; the
    weights are those experts' s, made to sum to 1 with `normalize`, times scale. out as in RouteTopK.
    DeepSeek-V3 report, section 2.1.2."""

    kind: ClassVar[str] = "route_grouped"
    weights: ClassVar[tuple[str, ...]] = ("bias",)
    x: str
    out: str
    bias: str
    top_k: int
    groups: int
    top_groups: int
    normalize: bool
    scale: float


@dataclass(frozen=True, slots=True)
class Experts(Op):
    """out += scale * sum over the row's routes, in router order, of weight * down(act(gate x) * up x)."""

    kind: ClassVar[str] = "experts"
    reads: ClassVar[tuple[str, ...]] = ("x", "routes", "out")
    weights: ClassVar[tuple[str, ...]] = ("gate_up", "down")
    x: str
    routes: str
    out: str
    gate_up: str
    down: str
    act: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class ClampedExperts(Op):
    """Experts with biases and another gate: g = min(g, limit), u = clip(u, +-limit), g sigmoid(alpha g) (u + 1)."""

    kind: ClassVar[str] = "clamped_experts"
    reads: ClassVar[tuple[str, ...]] = ("x", "routes", "out")
    weights: ClassVar[tuple[str, ...]] = ("gate_up", "gate_up_bias", "down", "down_bias")
    x: str
    routes: str
    out: str
    gate_up: str
    gate_up_bias: str
    down: str
    down_bias: str
    alpha: float
    limit: float
    scale: float = 1.0
