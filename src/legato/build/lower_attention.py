"""Lowering of the other attentions and of state spaces."""

from legato.build import plan as ops
from legato.build import plan_declared as declared
from legato.build.lower_dense import cache_layer, project_heads, project_out, project_qkv
from legato.build.scope import Bodies, Input, Out, Scope
from legato.models.spec import Alibi, AxisRope
from legato.models.spec_bodies import EncoderAttention, LatentAttention, SinkAttention, StateSpace

__all__ = ["BODIES"]


def _sink_attention(s: Scope, x: Input, body: SinkAttention, out: Out) -> None:
    a = body.attention
    assert not isinstance(a.rope, Alibi | AxisRope)
    shape = (a.heads, a.kv_heads, a.head_dim)
    qkv = project_heads(s, x, a)
    at = cache_layer(s, a)
    q = s.b.buffer("q", a.heads * a.head_dim)
    s.b.ops.append(ops.HeadsToCache(qkv, q, None, None, 0.0, *at, *shape, s.rope(a.rope)))
    sinks = s.vector("sinks", body.sinks, a.heads)

    def attend(attended: str) -> ops.Op:
        return declared.SinkAttention(q, attended, sinks, *at, *shape, a.scale, a.window)

    project_out(s, a, a.heads * a.head_dim, attend, out)


def _encoder_attention(s: Scope, x: Input, body: EncoderAttention, out: Out) -> None:
    width = body.heads * body.head_dim
    qkv = project_qkv(s, x, body.qkv, [width] * 3)

    def attend(attended: str) -> ops.Op:
        return declared.EncoderAttention(qkv, attended, body.heads, body.head_dim, body.scale)

    project_out(s, body, width, attend, out)


def _latent_attention(s: Scope, x: Input, body: LatentAttention, out: Out) -> None:
    b, hidden = s.b, s.b.arch.hidden
    shape = (body.heads, body.nope_dim, body.rope_dim)
    q_down = s.one("q_down", body.q_down, body.q_rank, hidden)
    q_latent = s.store("q_latent", x.for_weight(q_down[0]), q_down)
    q_up = s.one("q_up", body.q_up, body.heads * (body.nope_dim + body.rope_dim), body.q_rank)
    q_normed = b.buffer("q_normed", body.q_rank, b.activation(q_up[0]))
    s.add_norm(q_latent, q_normed, body.q_norm)
    q = s.store("q_plain", q_normed, q_up)

    kv_down = s.one("kv_down", body.kv_down, body.rank + body.rope_dim, hidden)
    latent = s.store("latent", x.for_weight(kv_down[0]), kv_down)
    at = b.cache_layer("latent", None, 1, body.rank + body.rope_dim)
    norm = s.norm(body.kv_norm, body.rank)[0]
    rope = s.rope(body.rope)
    assert rope is not None
    rotated = b.buffer("q", b.width(q))
    b.ops.append(declared.LatentToCache(latent, q, rotated, norm, body.kv_norm.eps, *at, *shape, body.rank, rope))
    up = s.one("kv_up", body.kv_up, body.heads * (body.nope_dim + body.value_dim), body.rank)[0]

    def attend(attended: str) -> ops.Op:
        return declared.LatentAttention(rotated, attended, up, *at, *shape, body.value_dim, body.rank, body.scale)

    project_out(s, body, body.heads * body.value_dim, attend, out)


def _state_space(s: Scope, x: Input, body: StateSpace, out: Out) -> None:
    inner = body.heads * body.head_dim
    conv = inner + 2 * body.groups * body.state
    into = s.one("into", body.into, inner + conv + body.heads, s.b.arch.hidden)
    projected = s.store("projected", x.for_weight(into[0]), into)
    at = s.b.cache_layer("state", None, 1, inner * body.state + conv * body.kernel)
    weights = (
        s.array("conv", f"{body.name}.conv1d.weight", (conv, 1, body.kernel)),
        s.vector("conv.bias", f"{body.name}.conv1d.bias", conv),
        s.vector("a_log", f"{body.name}.A_log", body.heads),
        s.vector("d", f"{body.name}.D", body.heads),
        s.vector("dt_bias", f"{body.name}.dt_bias", body.heads),
        s.norm(body.norm, inner)[0],
    )
    shape = (body.heads, body.head_dim, body.state, body.groups, body.kernel, body.chunk)

    def attend(mixed: str) -> ops.Op:
        return declared.StateSpace(projected, mixed, *weights, body.norm.eps, *at, *shape)

    project_out(s, body, inner, attend, out)


BODIES: Bodies = {
    SinkAttention: _sink_attention,
    EncoderAttention: _encoder_attention,
    LatentAttention: _latent_attention,
    StateSpace: _state_space,
}
