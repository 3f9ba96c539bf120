"""Lowering of what dense decoders are made of: residual blocks, attention, MLPs."""

from collections.abc import Callable, Mapping
from typing import Any

from legato.build import plan as ops
from legato.build import plan_declared as declared
from legato.build.scope import Bodies, Input, Out, Scope
from legato.models.spec import (
    Alibi,
    Attention,
    AxisRope,
    Block,
    GatedMlp,
    Mlp,
    Norm,
    Parallel,
    PostNorm,
    Residual,
)

__all__ = ["BLOCKS", "BODIES", "cache_layer", "project_heads", "project_out", "project_qkv"]

# --------------------------------------------------------------------------------------------------------- blocks


def _residual(s: Scope, block: Residual) -> None:
    x = Input(s, block.norm, s.x)
    if block.post is None:
        s.body(x, block.body, Out(s.x, "add", block.scale))
    else:
        add_normed(s, x, block.body, block.post, block.scale)


def add_normed(s: Scope, x: Input, body: Any, post: Norm, scale: float = 1.0) -> None:
    """s.x += scale * post(body(x))."""
    branch = s.b.buffer("branch", s.b.arch.hidden)
    s.body(x, body, Out(branch, "store"))
    s.add_norm(branch, branch, post)
    s.b.ops.append(declared.Add(branch, s.x, scale=scale))


def _parallel(s: Scope, block: Parallel) -> None:
    """All branches read x before anything is added to it: every result but the last goes to a buffer first."""
    inputs: dict[Norm, Input] = {}
    waiting = []
    for i, (norm, body) in enumerate(block.branches):
        x = inputs.setdefault(norm, Input(s, norm, s.x))
        if i == len(block.branches) - 1:
            s.body(x, body, Out(s.x, "add"))
        else:
            waiting.append(s.b.buffer(f"branch{i}", s.b.arch.hidden))
            s.body(x, body, Out(waiting[-1], "store"))
    for branch in waiting:
        s.b.ops.append(declared.Add(branch, s.x))


def _post_norm(s: Scope, block: PostNorm) -> None:
    s.body(Input(s, None, s.x), block.body, Out(s.x, "add"))
    s.add_norm(s.x, s.x, block.norm)


# --------------------------------------------------------------------------------------------------------- bodies


def project_qkv(s: Scope, x: Input, projs: Any, rows: list[int]) -> str:
    """Buffer with the outputs of all projections side by side, `rows` values each."""
    if len(projs) == 1:
        rows = [sum(rows)]
    qkv = s.b.buffer("qkv", sum(rows))
    column = 0
    for weight, bias in s.linear("qkv", projs, rows, s.b.arch.hidden):
        s.b.ops.append(ops.Linear(x.for_weight(weight), qkv, weight, bias, "store", column=column))
        column += s.b.rows(weight)
    return qkv


def project_heads(s: Scope, x: Input, body: Attention) -> str:
    """Buffer with the q, k and v heads of an attention."""
    q, kv = body.heads * body.head_dim, body.kv_heads * body.head_dim
    return project_qkv(s, x, body.qkv, [q, kv, kv])


def project_out(s: Scope, body: Any, width: int, attend: Callable[[str], ops.Op], out: Out) -> None:
    """The attention op that `attend` makes for its output buffer, and the projection of its result."""
    matrix = s.one("out", body.out, s.b.arch.hidden, width)
    attended = s.b.buffer("attended", width, s.b.activation(matrix[0]))
    s.b.ops.append(attend(attended))
    s.add_linear(attended, matrix, out)


def cache_layer(s: Scope, body: Attention) -> tuple[int, int]:
    kind = "full" if body.window is None else "window"
    return s.b.cache_layer(kind, body.window, body.kv_heads, body.head_dim)


def _attention(s: Scope, x: Input, body: Attention, out: Out) -> None:
    heads, kv_heads, dim = body.heads, body.kv_heads, body.head_dim
    qkv = project_heads(s, x, body)
    at = cache_layer(s, body)
    shape = (heads, kv_heads, dim)
    q = s.b.buffer("q", heads * dim)
    if isinstance(body.rope, AxisRope):
        rope = s.rope(body.rope.rope)
        assert rope is not None
        s.b.ops.append(declared.AxisHeadsToCache(qkv, q, *at, *shape, rope, body.rope.sections))
    else:
        q_norm, k_norm = (s.norm(n, dim)[0] if n else None for n in (body.q_norm, body.k_norm))
        eps = body.q_norm.eps if body.q_norm else 0.0
        rope = None if isinstance(body.rope, Alibi) else s.rope(body.rope)
        s.b.ops.append(ops.HeadsToCache(qkv, q, q_norm, k_norm, eps, *at, *shape, rope))

    def attend(attended: str) -> ops.Op:
        if isinstance(body.rope, Alibi):
            return declared.AlibiAttention(q, attended, *at, *shape, body.scale, body.rope.slopes, body.window)
        return ops.Attention(q, attended, *at, *shape, body.scale, body.window)

    project_out(s, body, heads * dim, attend, out)


def _gated_mlp(s: Scope, x: Input, body: GatedMlp, out: Out) -> None:
    weight, bias = s.gate_up("gate_up", body)
    down = s.one("down", body.down, s.b.arch.hidden, body.width)
    gated = s.b.buffer("gated", body.width, s.b.activation(down[0]))
    s.b.ops.append(ops.Linear(x.for_weight(weight), gated, weight, bias, "glu", act=body.act))
    s.add_linear(gated, down, out)


def _mlp(s: Scope, x: Input, body: Mlp, out: Out) -> None:
    weight, bias = s.one("up", body.up, body.width, s.b.arch.hidden)
    down = s.one("down", body.down, s.b.arch.hidden, body.width)
    inner = s.b.buffer("inner", body.width, s.b.activation(down[0]))
    s.b.ops.append(ops.Linear(x.for_weight(weight), inner, weight, bias, "store", act=body.act))
    s.add_linear(inner, down, out)


BLOCKS: Mapping[type[Block], Callable[[Scope, Any], None]] = {
    Residual: _residual,
    Parallel: _parallel,
    PostNorm: _post_norm,
}
BODIES: Bodies = {Attention: _attention, GatedMlp: _gated_mlp, Mlp: _mlp}
