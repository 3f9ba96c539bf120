"""Lowering of models with several residual streams (AltUp), shared keys and values, and inputs per layer."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from legato.build import plan as ops
from legato.build import plan_declared as declared
from legato.build import plan_streams as streams_ops
from legato.build.lower_dense import add_normed, cache_layer, project_heads, project_out, project_qkv
from legato.build.scope import Bodies, Input, Out, Scope
from legato.models.spec import Alibi, Attention, AxisRope, Block, Proj, Streams
from legato.models.spec_bodies import (
    AltUpCorrect,
    AltUpPredict,
    LaurelAttention,
    NormedAttention,
    SharedAttention,
    SparseMlp,
)

__all__ = ["BLOCKS", "BODIES", "expand", "merge"]


def expand(s: Scope, streams: Streams, layers: int) -> None:
    """After the embedding: the inputs per layer, and the streams."""
    b, hidden, width = s.b, s.b.arch.hidden, layers * streams.slice
    inputs = b.buffer("per_layer", width)
    table = b.table("embedding.per_layer", f"{streams.table}.weight", streams.table_rows, width)
    b.ops.append(ops.Embed(inputs, table, streams.table_scale))
    matrix = s.one("per_layer.project", streams.project, width, hidden)
    projected = s.store("per_layer_projected", s.converted(s.x, matrix[0]), matrix)
    norm = s.norm(streams.project_norm, streams.slice)[0]
    b.ops.append(
        streams_ops.PerLayerInputs(projected, inputs, norm, streams.project_norm.eps, streams.project_scale, layers)
    )
    [(projections, _)] = s.linear("streams.expand", streams.expand, [hidden] * len(streams.expand), hidden)
    out = b.buffer("streams", streams.count * hidden)
    b.ops.append(streams_ops.AltUpExpand(s.x, out, projections, streams.count))


def merge(s: Scope, streams: Streams) -> None:
    """Before the last norm: one stream again."""
    hidden = s.b.arch.hidden
    [(projections, _)] = s.linear("streams.merge", streams.merge, [hidden] * len(streams.merge), hidden)
    s.b.ops.append(streams_ops.AltUpMerge("streams", s.x, projections, streams.count))


def _router(s: Scope, name: str, coefs: str, rows: int) -> tuple[str, str, str]:
    """(norm, router, coefs) of a layer's AltUp."""
    streams = s.b.arch.streams
    assert streams is not None
    hidden = s.b.arch.hidden
    return (
        s.vector("altup.norm", f"{name}.router_norm.weight", hidden),
        s.one("altup.router", Proj(f"{name}.modality_router"), streams.count, hidden)[0],
        s.one(f"altup.{coefs}", Proj(f"{name}.{coefs}"), rows, streams.count)[0],
    )


def _predict(s: Scope, block: AltUpPredict) -> None:
    streams = s.b.arch.streams
    assert streams is not None
    weights = _router(s, block.name, "prediction_coefs", streams.count**2)
    predictions = s.b.buffer("predictions", streams.count * s.b.arch.hidden)
    s.b.ops.append(streams_ops.AltUpPredict("streams", predictions, s.x, *weights, block.eps, streams.count))


def _correct(s: Scope, block: AltUpCorrect) -> None:
    b, hidden, streams = s.b, s.b.arch.hidden, s.b.arch.streams
    assert streams is not None
    weights = _router(s, block.name, "correction_coefs", streams.count)
    gain = s.vector("altup.gain", f"{block.name}.correct_output_scale", hidden)
    first = b.buffer("first", hidden)
    b.ops.append(
        streams_ops.AltUpCorrect(s.x, "predictions", "streams", first, *weights, gain, block.eps, streams.count)
    )
    gate = s.one("per_layer.gate", block.gate, streams.slice, hidden)
    gated = s.store("per_layer_gate", s.converted(first, gate[0]), gate)
    project = s.one("per_layer.out", block.project, hidden, streams.slice)
    mixed = b.buffer("per_layer_gated", streams.slice, b.activation(project[0]))
    b.ops.append(streams_ops.PerLayerGate(gated, "per_layer", mixed, s.index, block.act))
    branch = b.buffer("branch", hidden)
    s.add_linear(mixed, project, Out(branch, "store"))
    s.add_norm(branch, branch, block.post)
    b.ops.append(streams_ops.AltUpSpread(branch, "streams", streams.count))


def _laurel(s: Scope, block: LaurelAttention) -> None:
    b, hidden = s.b, s.b.arch.hidden
    normed = b.buffer("laurel_normed", hidden)
    s.add_norm(s.x, normed, block.norm)
    left = s.one("laurel.left", block.left, block.rank, hidden)
    right = s.one("laurel.right", block.right, hidden, block.rank)
    low = s.store("laurel_low", s.converted(normed, left[0]), left)
    laurel = s.store("laurel", s.converted(low, right[0]), right)
    s.add_norm(laurel, laurel, block.laurel_norm)
    add_normed(s, Input(s, None, normed), block.body, block.post)
    b.ops.append(declared.Add(normed, s.x))
    half = math.sqrt(0.5)
    b.ops.append(declared.Add(laurel, s.x, keep=half, scale=half))


def _normed_attention(s: Scope, x: Input, body: NormedAttention, out: Out) -> None:
    a = body.attention
    dim, shape = a.head_dim, (a.heads, a.kv_heads, a.head_dim)
    qkv = project_heads(s, x, a)
    at = cache_layer(s, a)
    q, q_norm, eps, rope = _queries(s, a)
    assert a.k_norm is not None
    k_norm = s.norm(a.k_norm, dim)[0]
    s.b.ops.append(streams_ops.NormedHeadsToCache(qkv, q, q_norm, k_norm, eps, *at, *shape, rope))
    s.b.cached[s.index] = at
    project_out(s, a, a.heads * dim, lambda y: ops.Attention(q, y, *at, *shape, a.scale, a.window), out)


def _shared_attention(s: Scope, x: Input, body: SharedAttention, out: Out) -> None:
    a = body.attention
    shape = (a.heads, a.kv_heads, a.head_dim)
    plain = project_qkv(s, x, a.qkv, [a.heads * a.head_dim])
    q, q_norm, eps, rope = _queries(s, a)
    s.b.ops.append(streams_ops.QueryHeads(plain, q, q_norm, eps, a.heads, a.head_dim, rope))
    at = s.b.cached[body.source]
    project_out(s, a, a.heads * a.head_dim, lambda y: ops.Attention(q, y, *at, *shape, a.scale, a.window), out)


def _queries(s: Scope, a: Attention) -> tuple[str, str, float, int]:
    """(buffer of rotated queries, their norm, its eps, rope)."""
    assert a.q_norm is not None
    assert not isinstance(a.rope, Alibi | AxisRope)
    rope = s.rope(a.rope)
    assert rope is not None
    return s.b.buffer("q", a.heads * a.head_dim), s.norm(a.q_norm, a.head_dim)[0], a.q_norm.eps, rope


def _sparse_mlp(s: Scope, x: Input, body: SparseMlp, out: Out) -> None:
    mlp = body.mlp
    matrix = s.gate_up("gate_up", mlp, interleave=False)
    both = s.store("gate_up", x.for_weight(matrix[0]), matrix)
    down = s.one("down", mlp.down, s.b.arch.hidden, mlp.width)
    gated = s.b.buffer("gated", mlp.width, s.b.activation(down[0]))
    s.b.ops.append(streams_ops.SparseGlu(both, gated, mlp.act, body.sparsity))
    s.add_linear(gated, down, out)


BLOCKS: Mapping[type[Block], Callable[[Scope, Any], None]] = {
    AltUpPredict: _predict,
    AltUpCorrect: _correct,
    LaurelAttention: _laurel,
}
BODIES: Bodies = {
    NormedAttention: _normed_attention,
    SharedAttention: _shared_attention,
    SparseMlp: _sparse_mlp,
}
