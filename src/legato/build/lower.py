"""From an Arch and a checkpoint to a plan: a flat list of fused ops.

Fusions done here: q, k and v rows become one matrix, gate and up one interleaved matrix, where their formats agree
(q, k, v of different formats fill column ranges of one buffer; gate and up of different formats are joined in
exact f32); the norm writes the format that the next matrix wants; residual adds and activations are epilogues.
"""

from collections.abc import Callable, Mapping
from typing import Any

from legato.build import lower_attention, lower_dense, lower_experts, lower_streams
from legato.build import plan as ops
from legato.build import plan_declared as declared
from legato.build.builder import ASKED_FORMATS, PlanBuilder
from legato.build.plan import Plan
from legato.build.scope import Bodies, Out, Scope
from legato.build.verify import verify
from legato.core.errors import ConfigError
from legato.models.spec import Arch, Block, Head, Pooler
from legato.weights.source import TensorSource

__all__ = ["lower"]

BODIES: Bodies = {
    **lower_dense.BODIES,
    **lower_attention.BODIES,
    **lower_experts.BODIES,
    **lower_streams.BODIES,
}
BLOCKS: Mapping[type[Block], Callable[[Scope, Any], None]] = {**lower_dense.BLOCKS, **lower_streams.BLOCKS}


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
    limit = max_position or arch.max_position
    b = PlanBuilder(arch, source, format)
    outer = Scope(b, "", "", BODIES, max_position=limit)
    _embed(outer, arch)
    for i, layer in enumerate(arch.layers):
        scope = Scope(b, layer.prefix, f"layers.{i}.", BODIES, max_position=limit, index=i)
        for block in layer.blocks:
            BLOCKS[type(block)](scope, block)
    _head(outer, arch)
    plan = b.finish(limit)
    verify(plan)
    return plan


def _embed(s: Scope, arch: Arch) -> None:
    b, embedding = s.b, arch.embedding
    x = b.buffer("x", arch.hidden)
    b.ops.append(
        ops.Embed(x, b.table("embedding", f"{embedding.name}.weight", arch.vocab, arch.hidden), embedding.scale)
    )
    for added in embedding.added:
        table = b.table(f"embedding.{added.index}", f"{added.name}.weight", added.rows, arch.hidden)
        b.ops.append(declared.EmbedAdd(x, table, added.index))
    if embedding.norm:
        s.add_norm(x, x, embedding.norm)
    if arch.streams:
        lower_streams.expand(s, arch.streams, len(arch.layers))


def _head(s: Scope, arch: Arch) -> None:
    """The last norm and the logits (or the pooled vector), for output rows only."""
    if arch.streams:
        lower_streams.merge(s, arch.streams)
    selected = s.b.buffer("selected", arch.hidden, domain="out")
    s.b.ops.append(ops.SelectRows("x", selected))
    if isinstance(arch.head, Pooler):
        _pool(s, arch.head, selected)
    else:
        _logits(s, arch, arch.head, selected)


def _pool(s: Scope, head: Pooler, selected: str) -> None:
    width = s.b.width(selected)
    matrix = s.one("pooler", head.dense, width, width)
    dense = s.b.buffer("pooler_dense", width, domain="out")
    s.add_linear(s.converted(selected, matrix[0]), matrix, Out(dense, "store"))
    s.b.ops.append(declared.Pool(dense, s.b.buffer("pooled", width, domain="out")))


def _logits(s: Scope, arch: Arch, head: Head, selected: str) -> None:
    b = s.b
    source = f"{arch.embedding.name if head.tied else head.name}.weight"
    shape = (arch.vocab, arch.hidden)
    if head.tied and b.has(f"{head.name}.weight"):
        b.take(f"{head.name}.weight", shape)
    weight = b.linear("head", [source], [arch.vocab], arch.hidden, b.format_of(source, shape, lowest="int8"))
    x = selected
    if arch.norm:
        x = b.buffer("selected_normed", arch.hidden, b.activation(weight), "out")
        s.add_norm(selected, x, arch.norm)
    logits = b.buffer("logits", arch.vocab, domain="out")
    b.ops.append(ops.Logits(x, logits, weight, None, head.scale))
    if head.cap is not None:
        b.ops.append(declared.SoftCap(logits, b.buffer("capped", arch.vocab, domain="out"), head.cap))
