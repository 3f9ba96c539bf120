"""From an Arch and a checkpoint to a plan: a flat list of fused ops.

Fusions done here: q, k and v rows become one matrix, gate and up one interleaved matrix, where their formats agree
(q, k, v of different formats fill column ranges of one buffer; gate and up of different formats are joined in
exact f32); the norm writes the format that the next matrix wants; residual adds and activations are epilogues.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from legato.build import plan as ops
from legato.build.builder import ASKED_FORMATS, PlanBuilder
from legato.build.plan import Plan
from legato.build.verify import verify
from legato.core.errors import ConfigError
from legato.models.spec import Arch, Attention, Block, Body, GatedMlp, Norm, Proj, Residual, Rope
from legato.weights.source import TensorSource

__all__ = ["lower"]


def lower(arch: Arch, source: TensorSource, *, format: str = "auto", max_position: int | None = None) -> Plan:
    """A verified plan.

    format: "auto" keeps the checkpoint's numbers; "fp32", "bf16", "int8", "int4" convert linear weights (tables and
    vectors stay as they are). max_position: positions that must be computable; default and upper limit: the model's.
    Raises CheckpointError naming file and tensor for a missing, extra or wrongly shaped tensor; ConfigError for a
    position limit beyond the model's.
    """
    if format not in ASKED_FORMATS:
        raise ConfigError(f"format '{format}' is not one of {', '.join(ASKED_FORMATS)}")
    if max_position is not None and not 0 < max_position <= arch.max_position:
        raise ConfigError(f"max_model_len {max_position} is not between 1 and the model's limit {arch.max_position}")
    b = PlanBuilder(arch, source, format)
    _embed(b)
    for i, layer in enumerate(arch.layers):
        scope = Scope(b, layer.prefix, f"layers.{i}.")
        for block in layer.blocks:
            BLOCKS[type(block)](scope, block)
    _head(b)
    plan = b.finish(max_position or arch.max_position)
    verify(plan)
    return plan


class Scope:
    """The builder within one layer: `source` prefixes names of the checkpoint, `name` those of the plan."""

    def __init__(self, b: PlanBuilder, source: str, name: str) -> None:
        self.b = b
        self._source = source
        self._name = name
        self.x = "x"

    def linear(self, name: str, projs: Sequence[Proj], rows: Sequence[int], k: int) -> list[tuple[str, str | None]]:
        """(weight, bias) of neighbouring projections, as few matrices as formats and biases allow."""
        parts = [
            (self.b.format_of(f"{self._source}{p.name}.weight", (n, k)), p, n) for p, n in zip(projs, rows, strict=True)
        ]
        result: list[tuple[str, str | None]] = []
        for (format, _), run in groupby(parts, key=lambda part: (part[0], part[1].bias)):
            _, run_projs, run_rows = zip(*run, strict=True)
            suffix = "" if len(run_projs) == len(projs) else f".{len(result)}"
            result.append(self._matrix(name + suffix, run_projs, run_rows, k, format, interleave=False))
        return result

    def interleaved(self, name: str, gate: Proj, up: Proj, width: int, k: int) -> tuple[str, str | None]:
        """(weight, bias) of gate and up as one matrix whose panels alternate."""
        formats = {self.b.format_of(f"{self._source}{p.name}.weight", (width, k)) for p in (gate, up)}
        format = formats.pop() if len(formats) == 1 else "f32"
        return self._matrix(name, (gate, up), (width, width), k, format, interleave=True)

    def _matrix(
        self, name: str, projs: Sequence[Proj], rows: Sequence[int], k: int, format: str, *, interleave: bool
    ) -> tuple[str, str | None]:
        sources = [f"{self._source}{p.name}" for p in projs]
        name = self._name + name
        weight = self.b.linear(name, [f"{s}.weight" for s in sources], rows, k, format, interleave=interleave)
        bias = None
        if projs[0].bias:
            bias = self.b.vector(f"{name}.bias", [f"{s}.bias" for s in sources], rows, interleave=interleave)
        return weight, bias

    def norm(self, norm: Norm, width: int) -> tuple[str, str | None]:
        """(weight, bias) of a norm over `width` values."""
        return norm_weights(self.b, self._name, self._source, norm, width)

    def normed(self, norm: Norm, weight: str, written: dict[str, str] | None = None) -> str:
        """Buffer with norm(x) in the format that `weight` wants. `written`: formats this block has already."""
        format = self.b.activation(weight)
        if written is not None and format in written:
            return written[format]
        out = self.b.buffer("normed", self.b.arch.hidden, format)
        gain, bias = self.norm(norm, self.b.arch.hidden)
        self.b.ops.append(ops.Norm(self.x, out, gain, bias, norm.kind, norm.eps))
        if written is not None:
            written[format] = out
        return out


def norm_weights(b: PlanBuilder, name: str, source: str, norm: Norm, width: int) -> tuple[str, str | None]:
    path = f"{source}{norm.name}"
    name = f"{name}{norm.name.rsplit('.', 1)[-1]}"
    weight = b.vector(name, [f"{path}.weight"], [width])
    return weight, b.vector(f"{name}.bias", [f"{path}.bias"], [width]) if norm.bias else None


def _embed(b: PlanBuilder) -> None:
    arch = b.arch
    table = b.table("embedding", f"{arch.embedding.name}.weight", (arch.vocab, arch.hidden))
    b.ops.append(ops.Embed(b.buffer("x", arch.hidden), table, arch.embedding.scale))


def _head(b: PlanBuilder) -> None:
    """The last norm and the logits, for output rows only."""
    arch, head = b.arch, b.arch.head
    source = f"{arch.embedding.name if head.tied else head.name}.weight"
    shape = (arch.vocab, arch.hidden)
    if head.tied and b.has(f"{head.name}.weight"):
        b.take(f"{head.name}.weight", shape)
    weight = b.linear("head", [source], [arch.vocab], arch.hidden, b.format_of(source, shape, lowest="int8"))
    bias = b.vector("head.bias", [f"{head.name}.bias"], [arch.vocab]) if head.bias else None
    selected = b.buffer("selected", arch.hidden, domain="out")
    b.ops.append(ops.SelectRows("x", selected))
    normed = b.buffer("selected_normed", arch.hidden, b.activation(weight), "out")
    gain, gain_bias = norm_weights(b, "", "", arch.norm, arch.hidden)
    b.ops.append(ops.Norm(selected, normed, gain, gain_bias, arch.norm.kind, arch.norm.eps))
    logits = b.buffer("logits", arch.vocab, domain="out")
    b.ops.append(ops.Logits(normed, logits, weight, bias, head.scale))


def _residual(s: Scope, block: Residual) -> None:
    """x += scale * body(norm(x)); the body's last matrix adds to x itself."""
    BODIES[type(block.body)](s, block.norm, block.body, block.scale)


def _attention(s: Scope, norm: Norm, body: Attention, scale: float) -> None:
    b, dim = s.b, body.head_dim
    rows = [body.heads * dim, body.kv_heads * dim, body.kv_heads * dim]
    qkv = b.buffer("qkv", sum(rows))
    column, written = 0, dict[str, str]()
    for weight, bias in s.linear("qkv", body.qkv, rows, b.arch.hidden):
        x = s.normed(norm, weight, written)
        b.ops.append(ops.Linear(x, qkv, weight, bias, "store", column=column))
        column += b.rows(weight)

    group, layer = b.cache_layer("window" if body.window else "full", body.window, body.kv_heads, dim)
    q = b.buffer("q", rows[0])
    q_norm = s.norm(body.q_norm, dim)[0] if body.q_norm else None
    k_norm = s.norm(body.k_norm, dim)[0] if body.k_norm else None
    eps = body.q_norm.eps if body.q_norm else 0.0
    rope = _rope(b, body.rope) if body.rope else None
    b.ops.append(ops.HeadsToCache(qkv, q, q_norm, k_norm, eps, group, layer, body.heads, body.kv_heads, dim, rope))

    [(weight, bias)] = s.linear("out", [body.out], [b.arch.hidden], rows[0])
    attended = b.buffer("attended", rows[0], b.activation(weight))
    b.ops.append(ops.Attention(q, attended, group, layer, body.heads, body.kv_heads, dim, body.scale, body.window))
    b.ops.append(ops.Linear(attended, s.x, weight, bias, "add", scale=scale))


def _rope(b: PlanBuilder, rope: Rope) -> int:
    return b.rope(ops.Rope(rope.dim, rope.inv_freq, rope.factor))


def _gated_mlp(s: Scope, norm: Norm, body: GatedMlp, scale: float) -> None:
    b = s.b
    weight, bias = s.interleaved("gate_up", body.gate, body.up, body.width, b.arch.hidden)
    [(down, down_bias)] = s.linear("down", [body.down], [b.arch.hidden], body.width)
    gated = b.buffer("gated", body.width, b.activation(down))
    b.ops.append(ops.Linear(s.normed(norm, weight), gated, weight, bias, "glu", act=body.act))
    b.ops.append(ops.Linear(gated, s.x, down, down_bias, "add", scale=scale))


BLOCKS: dict[type[Block], Callable[[Scope, Any], None]] = {Residual: _residual}
BODIES: dict[type[Body], Callable[[Scope, Norm, Any, float], None]] = {
    Attention: _attention,
    GatedMlp: _gated_mlp,
}
