"""The grammar of a model: frozen facts, no arithmetic. A family file reads config.json into one `Arch`.

An Arch is an embedding, layers, a last norm and a head. A layer is a list of blocks, each of which changes the
residual stream; a block wraps a body (attention, an MLP). New maths is a new block or body type here, not a flag.
Tensor names are those of the checkpoint; in a layer they are relative to the layer's prefix.
"""

from dataclasses import dataclass

__all__ = [
    "AddedTable",
    "Alibi",
    "Arch",
    "Attention",
    "AxisRope",
    "Block",
    "Body",
    "Embedding",
    "GatedMlp",
    "Head",
    "Layer",
    "LongRope",
    "Mlp",
    "Norm",
    "Parallel",
    "Pooler",
    "PostNorm",
    "Proj",
    "Residual",
    "Rope",
    "Streams",
]


@dataclass(frozen=True, slots=True)
class Proj:
    """A projection y = x W^T + b, tensors `name`.weight and, with `bias`, `name`.bias.

    view: how the rows are stored, where not as usual (see legato.build.plan.Tensor).
    """

    name: str
    bias: bool = False
    view: str = ""


@dataclass(frozen=True, slots=True)
class Norm:
    """kind "rms" or "layer" (see legato.build.plan.Norm); `name` is the tensor prefix; view as in Proj."""

    name: str
    kind: str
    eps: float
    bias: bool = False
    view: str = ""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of the first `dim` values of a head: see legato.build.plan.Rope."""

    dim: int
    inv_freq: tuple[float, ...]
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class LongRope:
    """Two ropes: `short` where no position is beyond `original`, else `long`. Chosen once, by the position limit."""

    short: Rope
    long: Rope
    original: int


@dataclass(frozen=True, slots=True)
class AxisRope:
    """A rope over several position axes: the first sections[0] pairs turn by axis 0, and so on."""

    rope: Rope
    sections: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Alibi:
    """No rotation; head h adds slopes[h] * distance to its scores."""

    slopes: tuple[float, ...]


class Body:
    """Base of what a block wraps: a function from a normed row to a row of the same width."""


@dataclass(frozen=True, slots=True)
class Attention(Body):
    """Causal attention with KV heads shared by groups of query heads.

    qkv: projections whose outputs, joined, are [q heads | k heads | v heads]. Without rope: no positions.
    q_norm and k_norm work on each head by itself. window: how many positions a row sees, itself included.
    """

    heads: int
    kv_heads: int
    head_dim: int
    qkv: tuple[Proj, ...]
    out: Proj
    scale: float
    rope: Rope | LongRope | AxisRope | Alibi | None
    window: int | None = None
    q_norm: Norm | None = None
    k_norm: Norm | None = None


@dataclass(frozen=True, slots=True)
class GatedMlp(Body):
    """down(act(gate(x)) * up(x)), `width` values in the middle. gate_up: two projections, or one with both, joined."""

    width: int
    act: str
    gate_up: tuple[Proj, ...]
    down: Proj


@dataclass(frozen=True, slots=True)
class Mlp(Body):
    """down(act(up(x))), `width` values in the middle."""

    width: int
    act: str
    up: Proj
    down: Proj


class Block:
    """Base of what a layer is made of: something that changes the residual stream x."""


@dataclass(frozen=True, slots=True)
class Residual(Block):
    """x += scale * post(body(norm(x)))."""

    norm: Norm
    body: Body
    scale: float = 1.0
    post: Norm | None = None


@dataclass(frozen=True, slots=True)
class Parallel(Block):
    """x += the sum of body(norm(x)) over the branches, all from the same x."""

    branches: tuple[tuple[Norm, Body], ...]


@dataclass(frozen=True, slots=True)
class PostNorm(Block):
    """x = norm(x + body(x))."""

    body: Body
    norm: Norm


@dataclass(frozen=True, slots=True)
class Layer:
    """Blocks in order; `prefix` comes before the tensor names of all of them."""

    prefix: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class AddedTable:
    """A second table whose rows are added: one per "position" or per "segment" of a text."""

    name: str
    rows: int
    index: str


@dataclass(frozen=True, slots=True)
class Embedding:
    """x = norm(scale * table[token] + added rows); `name` is the tensor prefix."""

    name: str
    scale: float = 1.0
    added: tuple[AddedTable, ...] = ()
    norm: Norm | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """logits = scale * x W^T, then soft-capped. Tied: the embedding's table is W, and a `name`.weight in the file is
    not used."""

    name: str
    tied: bool
    scale: float = 1.0
    cap: float | None = None


@dataclass(frozen=True, slots=True)
class Pooler:
    """No logits: the pooled vector tanh(x W^T + b) of the rows that are asked for."""

    dense: Proj


@dataclass(frozen=True, slots=True)
class Streams:
    """Several residual streams around the layers (AltUp), and a second embedding that each layer gets a slice of."""

    count: int
    expand: tuple[Proj, ...]
    merge: tuple[Proj, ...]
    table: str
    table_rows: int
    table_scale: float
    slice: int
    project: Proj
    project_norm: Norm
    project_scale: float


@dataclass(frozen=True, slots=True)
class Arch:
    """One model, ready to lower. `ignored` are patterns (fnmatch) of tensors that take no part in the result.

    `runs` is False for a family that proves the grammar while some of its ops have no kernel yet.
    """

    name: str
    file: str
    hidden: int
    vocab: int
    max_position: int
    embedding: Embedding
    layers: tuple[Layer, ...]
    norm: Norm | None
    head: Head | Pooler
    streams: Streams | None = None
    ignored: tuple[str, ...] = ()
    runs: bool = True
