"""The plan: a model lowered to a flat list of fused ops over named buffers. This file is the grammar.

A plan is what every executor runs: `reference` interprets it with numpy, `native` walks its binary form in the
engine file. It is static: shapes, formats and the order of ops do not depend on the batch, except that a "row"
buffer has one line per row of the step and an "out" buffer one per output row.

Buffers hold rows in one of the activation formats:
  f32     4 bytes a value
  bf16    2 bytes a value, rounded to nearest even
  s8gN    int8 in groups of N along the row, with a float32 scale and an int32 sum per group
"""

from dataclasses import dataclass, fields
from typing import ClassVar

from legato.core.types import CacheGroup

__all__ = [
    "Attention",
    "Buffer",
    "Embed",
    "HeadsToCache",
    "Linear",
    "Logits",
    "Norm",
    "Op",
    "Plan",
    "Rope",
    "SelectRows",
    "Tensor",
]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Activations between ops. domain: "row" (a line per row) or "out" (a line per output row)."""

    name: str
    width: int
    format: str = "f32"
    domain: str = "row"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A weight of the plan.

    kind: "linear" (packed panels), "table" (rows gathered one at a time), "vector" (float32), "experts" (one matrix
    per expert, (experts, n, k)), "array" (float32 of any shape).
    `sources` are canonical names in the checkpoint, concatenated along axis 0 in this order; with `interleave`
    there are two sources (gate, up) of n / 2 rows each whose 64-row panels alternate (each source is padded to whole
    panels by itself). `shape` is that of the unpadded result, (n, k) or (n,). `format` is a row of
    `legato.quant.formats`. A format that keeps the checkpoint's own numbers has sources of that one dtype; f32, bf16,
    int8 and int4 may join sources of different dtypes.

    `views` says per source (() = all as stored) how rows are read:
      ""                       as stored
      "plus_one"               1 is added to every value
      "columns"                stored as (k, n), to be transposed
      "by_kv_head:H,G,D"       stored per KV head as its H / G query heads, its key and its value, D rows each; read as
                               all H query heads, then the G keys, then the G values
      "pairs:N,D,B"            N heads of D rows whose rows from B on are rotated in neighbouring pairs; read with the
                               first of every pair, then the second of every pair, as Rope wants them
      "even_odd_columns"       per expert stored as (k, n), gate and up in alternating columns; read as gate, then up
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    format: str
    interleave: bool = False
    views: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of `dim` leading dimensions: angle = position * inv_freq[i], cos and sin times `factor`.

    The pair i is (i, i + dim/2). Checkpoints that pair (2i, 2i + 1) are permuted when they are read.
    """

    dim: int
    inv_freq: tuple[float, ...]
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Op:
    """Base of all ops. `reads` and `writes` name buffer fields, `weights` tensor fields; None values are absent.

    Most ops read x and write out; the others say what they do.
    """

    kind: ClassVar[str]
    reads: ClassVar[tuple[str, ...]] = ("x",)
    writes: ClassVar[tuple[str, ...]] = ("out",)
    weights: ClassVar[tuple[str, ...]] = ()

    def named(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(value for name in names if (value := getattr(self, name)) is not None)

    def attrs(self) -> dict[str, object]:
        skip = {*self.reads, *self.writes, *self.weights}
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in skip}


@dataclass(frozen=True, slots=True)
class Embed(Op):
    """out[r] = table[token of row r] * scale. out is f32."""

    kind: ClassVar[str] = "embed"
    reads: ClassVar[tuple[str, ...]] = ()
    weights: ClassVar[tuple[str, ...]] = ("table",)
    out: str
    table: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Norm(Op):
    """norm "rms": out = x / sqrt(mean(x^2) + eps) * weight; "layer": (x - mean) / sqrt(var + eps) * weight + bias.

    x is f32; out has any activation format (the quantization is fused).
    """

    kind: ClassVar[str] = "norm"
    weights: ClassVar[tuple[str, ...]] = ("weight", "bias")
    x: str
    out: str
    weight: str
    bias: str | None
    norm: str
    eps: float


@dataclass(frozen=True, slots=True)
class Linear(Op):
    """y = x @ weight.T + bias, then the epilogue:

    "store"  out[column : column + n] = act(y)    (out is f32 where n is less than its width)
    "add"    out += scale * y            (out is f32; the residual stream)
    "glu"    out = act(gate) * up        (weight is interleaved; out is half as wide)
    """

    kind: ClassVar[str] = "linear"
    weights: ClassVar[tuple[str, ...]] = ("weight", "bias")
    x: str
    out: str
    weight: str
    bias: str | None
    epilogue: str
    act: str = "none"  # none | silu | gelu | gelu_tanh | relu
    scale: float = 1.0
    column: int = 0  # store only: q, k and v of different formats fill one buffer


@dataclass(frozen=True, slots=True)
class HeadsToCache(Op):
    """Split qkv rows into heads; norm q and k per head (rms, over head_dim); rotate; write K and V to the cache.

    x is f32, [q heads | k heads | v heads] * head_dim. out is f32, heads * head_dim: the rotated q.
    `layer` counts within cache group `group`. rope is an index into Plan.ropes, None for layers without.
    """

    kind: ClassVar[str] = "heads_to_cache"
    weights: ClassVar[tuple[str, ...]] = ("q_norm", "k_norm")
    x: str
    out: str
    q_norm: str | None
    k_norm: str | None
    eps: float
    group: int
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    rope: int | None


@dataclass(frozen=True, slots=True)
class Attention(Op):
    """out = softmax(scale * q K^T, over cached positions p with row - window < p <= row) V. q head h reads
    kv head h // (heads / kv_heads). x is f32; out has any activation format."""

    kind: ClassVar[str] = "attention"
    x: str
    out: str
    group: int
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None


@dataclass(frozen=True, slots=True)
class SelectRows(Op):
    """out[o] = x[row of output o]: from the row domain to the out domain. Both f32."""

    kind: ClassVar[str] = "select_rows"
    x: str
    out: str


@dataclass(frozen=True, slots=True)
class Logits(Op):
    """out = scale * (x @ weight.T + bias), out domain, f32, `vocab` wide."""

    kind: ClassVar[str] = "logits"
    weights: ClassVar[tuple[str, ...]] = ("weight", "bias")
    x: str
    out: str
    weight: str
    bias: str | None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A lowered model. `groups[g].bytes_per_block` is 0 here: the executor fills it in for its KV dtype."""

    architecture: str
    vocab: int  # width of the logits
    hidden: int
    max_position: int
    kv_heads: tuple[int, ...]  # per cache group
    head_dims: tuple[int, ...]  # per cache group
    groups: tuple[CacheGroup, ...]
    tensors: tuple[Tensor, ...]
    buffers: tuple[Buffer, ...]
    ropes: tuple[Rope, ...]
    ops: tuple[Op, ...]
