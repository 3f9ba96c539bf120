"""What the declared ops demand of their operands (see verify_ops.py)."""

from collections.abc import Callable
from typing import Any

from legato.build import plan_declared as ops
from legato.build import plan_streams as streams
from legato.build.plan import Op
from legato.build.verify_ops import ACTIVATIONS, OpCheck, attention, heads, heads_to_cache

__all__ = ["CHECKS"]


def _add(c: OpCheck, op: ops.Add) -> None:
    c.buffer(op.x, c.width(op.out), domain=c.domain(op.out))
    c.buffer(op.out, c.width(op.x))


def _convert(c: OpCheck, op: ops.Convert) -> None:
    c.buffer(op.x, c.width(op.out))
    c.buffer(op.out, c.width(op.x), format=None, domain=c.domain(op.x))


def _embed_add(c: OpCheck, op: ops.EmbedAdd) -> None:
    c.require(op.index in ("position", "segment"), f"index '{op.index}'")
    c.table(op.table, c.width(op.out))
    c.buffer(op.out, c.width(op.out), domain="row")


def _same(c: OpCheck, op: Any) -> None:
    c.buffer(op.x, c.width(op.out), domain="out")
    c.buffer(op.out, c.width(op.x), domain="out")


def _sparse_glu(c: OpCheck, op: streams.SparseGlu) -> None:
    c.buffer(op.x, 2 * c.width(op.out))
    c.require(op.act in ACTIVATIONS and 0 < op.sparsity < 1, f"act '{op.act}', sparsity {op.sparsity}")


def _axis_heads(c: OpCheck, op: ops.AxisHeadsToCache) -> None:
    heads(c, op)
    c.require(2 * sum(op.sections) == c.plan.ropes[op.rope].dim, f"sections {op.sections} do not fill the rope")


def _query_heads(c: OpCheck, op: streams.QueryHeads) -> None:
    c.buffer(op.x, op.heads * op.head_dim, domain="row")
    c.buffer(op.out, op.heads * op.head_dim, domain="row")
    c.tensor(op.q_norm, "vector", op.head_dim)
    c.rope(op.rope, op.head_dim)


def _alibi(c: OpCheck, op: ops.AlibiAttention) -> None:
    attention(c, op)
    c.require(len(op.slopes) == op.heads, f"{len(op.slopes)} slopes for {op.heads} heads")


def _sinks(c: OpCheck, op: ops.SinkAttention) -> None:
    attention(c, op)
    c.tensor(op.sinks, "vector", op.heads)


def _encoder(c: OpCheck, op: ops.EncoderAttention) -> None:
    c.buffer(op.x, 3 * op.heads * op.head_dim, domain="row")
    c.buffer(op.out, op.heads * op.head_dim, format=None, domain="row")


def _latent_to_cache(c: OpCheck, op: ops.LatentToCache) -> None:
    c.latent(op)
    c.buffer(op.x, op.rank + op.rope_dim, domain="row")
    for q in (op.q, op.out):
        c.buffer(q, op.heads * (op.nope_dim + op.rope_dim), domain="row")
    c.tensor(op.norm, "vector", op.rank)
    c.rope(op.rope, op.rope_dim)


def _latent_attention(c: OpCheck, op: ops.LatentAttention) -> None:
    c.latent(op)
    c.buffer(op.x, op.heads * (op.nope_dim + op.rope_dim), domain="row")
    c.buffer(op.out, op.heads * op.value_dim, format=None, domain="row")
    c.tensor(op.up, "linear", op.heads * (op.nope_dim + op.value_dim), op.rank)


def _state_space(c: OpCheck, op: ops.StateSpace) -> None:
    inner = op.heads * op.head_dim
    conv = inner + 2 * op.groups * op.state
    c.state(op, op.heads * op.head_dim * op.state + conv * op.kernel)
    c.buffer(op.x, inner + conv + op.heads, domain="row")
    c.buffer(op.out, inner, format=None, domain="row")
    c.tensor(op.conv, "array", conv, 1, op.kernel)
    c.tensor(op.conv_bias, "vector", conv)
    for name in (op.a_log, op.d, op.dt_bias):
        c.tensor(name, "vector", op.heads)
    c.tensor(op.norm, "vector", inner)
    c.require(op.chunk > 0, f"chunk {op.chunk}")


def _route(c: OpCheck, op: Any) -> None:
    experts = c.width(op.x)
    c.require(0 < op.top_k <= experts, f"{op.top_k} of {experts} experts")
    c.buffer(op.x, experts, domain="row")
    c.buffer(op.out, 2 * op.top_k, domain="row")


def _route_grouped(c: OpCheck, op: ops.RouteGrouped) -> None:
    _route(c, op)
    experts = c.width(op.x)
    c.tensor(op.bias, "vector", experts)
    c.require(experts % op.groups == 0 and 0 < op.top_groups <= op.groups, f"{op.top_groups} of {op.groups} groups")


def _experts(c: OpCheck, op: Any) -> None:
    count, width = c.experts(op.x, op.gate_up, op.down, c.width(op.out))
    c.require(c.width(op.routes) % 2 == 0 and c.width(op.routes) // 2 <= count, f"'{op.routes}' does not fit")
    c.buffer(op.routes, c.width(op.routes), domain="row")
    c.buffer(op.out, c.width(op.out), domain="row")
    if isinstance(op, ops.ClampedExperts):
        c.tensor(op.gate_up_bias, "array", count, 2 * width)
        c.tensor(op.down_bias, "array", count, c.width(op.out))
    else:
        c.require(op.act in ACTIVATIONS, f"activation '{op.act}'")


def _altup_one(c: OpCheck, op: Any) -> None:
    """Expand (one to several) and merge (several to one)."""
    hidden = c.plan.hidden
    one, several = (op.x, op.out) if isinstance(op, streams.AltUpExpand) else (op.out, op.x)
    c.buffer(one, hidden, domain="row")
    c.buffer(several, op.streams * hidden, domain="row")
    c.tensor(op.projections, "linear", (op.streams - 1) * hidden, hidden)


def _altup_router(c: OpCheck, op: Any, coefs: int) -> None:
    c.buffer(op.predictions, op.streams * c.plan.hidden, domain="row")
    c.tensor(op.norm, "vector", c.plan.hidden)
    c.tensor(op.router, "linear", op.streams, c.plan.hidden)
    c.tensor(op.coefs, "linear", coefs, op.streams)


def _altup_predict(c: OpCheck, op: streams.AltUpPredict) -> None:
    _altup_router(c, op, op.streams**2)
    c.buffer(op.x, op.streams * c.plan.hidden, domain="row")
    c.buffer(op.out, c.plan.hidden, domain="row")


def _altup_correct(c: OpCheck, op: streams.AltUpCorrect) -> None:
    _altup_router(c, op, op.streams)
    c.buffer(op.x, c.plan.hidden, domain="row")
    c.buffer(op.out, op.streams * c.plan.hidden, domain="row")
    c.buffer(op.first, c.plan.hidden, domain="row")
    c.tensor(op.gain, "vector", c.plan.hidden)


def _altup_spread(c: OpCheck, op: streams.AltUpSpread) -> None:
    c.buffer(op.x, c.plan.hidden, domain="row")
    c.buffer(op.out, op.streams * c.plan.hidden, domain="row")


def _per_layer_inputs(c: OpCheck, op: streams.PerLayerInputs) -> None:
    width = c.width(op.out)
    c.require(op.layers > 0 and width % op.layers == 0, f"'{op.out}' has no slice for each of {op.layers} layers")
    c.buffer(op.x, width, domain="row")
    c.buffer(op.out, width, domain="row")
    c.tensor(op.norm, "vector", width // op.layers)


def _per_layer_gate(c: OpCheck, op: streams.PerLayerGate) -> None:
    width = c.width(op.out)
    c.buffer(op.x, width, domain="row")
    c.require((op.layer + 1) * width <= c.width(op.inputs), f"'{op.inputs}' has no slice {op.layer}")
    c.require(op.act in ACTIVATIONS, f"activation '{op.act}'")


CHECKS: dict[type[Op], Callable[[OpCheck, Any], None]] = {
    ops.Add: _add,
    ops.AlibiAttention: _alibi,
    streams.AltUpCorrect: _altup_correct,
    streams.AltUpExpand: _altup_one,
    streams.AltUpMerge: _altup_one,
    streams.AltUpPredict: _altup_predict,
    streams.AltUpSpread: _altup_spread,
    ops.AxisHeadsToCache: _axis_heads,
    ops.ClampedExperts: _experts,
    ops.Convert: _convert,
    ops.EmbedAdd: _embed_add,
    ops.EncoderAttention: _encoder,
    ops.Experts: _experts,
    ops.LatentAttention: _latent_attention,
    ops.LatentToCache: _latent_to_cache,
    streams.NormedHeadsToCache: heads_to_cache,
    streams.PerLayerGate: _per_layer_gate,
    streams.PerLayerInputs: _per_layer_inputs,
    ops.Pool: _same,
    streams.QueryHeads: _query_heads,
    ops.RouteGrouped: _route_grouped,
    ops.RouteTopK: _route,
    ops.SinkAttention: _sinks,
    ops.SoftCap: _same,
    streams.SparseGlu: _sparse_glu,
    ops.StateSpace: _state_space,
}
