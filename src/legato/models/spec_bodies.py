"""Bodies and blocks beyond the dense decoder: experts, other attentions, state spaces, several residual streams."""

from dataclasses import dataclass

from legato.models.spec import Attention, Block, Body, GatedMlp, Norm, Proj, Rope

__all__ = [
    "AltUpCorrect",
    "AltUpPredict",
    "ClampedExperts",
    "EncoderAttention",
    "Experts",
    "GroupedRouter",
    "LatentAttention",
    "LaurelAttention",
    "Moe",
    "NormedAttention",
    "SharedAttention",
    "SinkAttention",
    "SparseMlp",
    "StateSpace",
    "TopKRouter",
]


@dataclass(frozen=True, slots=True)
class TopKRouter:
    """See legato.build.plan_declared.RouteTopK."""

    proj: Proj
    top_k: int
    normalize: bool


@dataclass(frozen=True, slots=True)
class GroupedRouter:
    """See legato.build.plan_declared.RouteGrouped; `bias` is the tensor added for the choice alone."""

    proj: Proj
    bias: str
    top_k: int
    groups: int
    top_groups: int
    normalize: bool
    scale: float


@dataclass(frozen=True, slots=True)
class Experts:
    """`count` gated MLPs; the names hold {} for the number of an expert."""

    count: int
    width: int
    act: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True, slots=True)
class ClampedExperts:
    """Experts in three-dimensional tensors `gate_up` and `down`, with biases; see plan_declared.ClampedExperts."""

    count: int
    width: int
    gate_up: str
    down: str
    alpha: float
    limit: float


@dataclass(frozen=True, slots=True)
class Moe(Body):
    """The experts that a router chooses for each row, and perhaps one that every row passes."""

    router: TopKRouter | GroupedRouter
    experts: Experts | ClampedExperts
    shared: GatedMlp | None = None


@dataclass(frozen=True, slots=True)
class SinkAttention(Body):
    """Attention with one learned score per head that takes weight but gives no value."""

    attention: Attention
    sinks: str


@dataclass(frozen=True, slots=True)
class EncoderAttention(Body):
    """Attention in both directions, without a cache."""

    heads: int
    head_dim: int
    qkv: tuple[Proj, ...]
    out: Proj
    scale: float


@dataclass(frozen=True, slots=True)
class LatentAttention(Body):
    """Keys and values from one cached latent per position; see plan_declared.LatentAttention."""

    heads: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    q_rank: int
    rank: int
    q_down: Proj
    q_norm: Norm
    q_up: Proj
    kv_down: Proj
    kv_norm: Norm
    kv_up: Proj
    out: Proj
    rope: Rope
    scale: float


@dataclass(frozen=True, slots=True)
class StateSpace(Body):
    """Mamba-2's mixer; see plan_declared.StateSpace. `name` is the prefix of its tensors."""

    name: str
    heads: int
    head_dim: int
    state: int
    groups: int
    kernel: int
    chunk: int
    norm: Norm
    into: Proj
    out: Proj


@dataclass(frozen=True, slots=True)
class NormedAttention(Body):
    """Attention that also norms v per head, without a weight."""

    attention: Attention


@dataclass(frozen=True, slots=True)
class SharedAttention(Body):
    """Attention with its own queries over the keys and values of layer `source`. attention.qkv holds q alone."""

    attention: Attention
    source: int


@dataclass(frozen=True, slots=True)
class SparseMlp(Body):
    """A gated MLP whose gate keeps only its largest values; see plan_streams.SparseGlu."""

    mlp: GatedMlp
    sparsity: float


@dataclass(frozen=True, slots=True)
class LaurelAttention(Block):
    """x = (x + post(body(n)) + n + laurel_norm(right(left(n)))) / sqrt(2), n = norm(x)."""

    norm: Norm
    body: Body
    post: Norm
    rank: int
    left: Proj
    right: Proj
    laurel_norm: Norm


@dataclass(frozen=True, slots=True)
class AltUpPredict(Block):
    """See plan_streams.AltUpPredict; `name` is the prefix of its tensors."""

    name: str
    eps: float


@dataclass(frozen=True, slots=True)
class AltUpCorrect(Block):
    """See plan_streams.AltUpCorrect; then the layer's slice of the second embedding joins the other streams."""

    name: str
    eps: float
    gate: Proj
    act: str
    project: Proj
    post: Norm
