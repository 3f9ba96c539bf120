"""The plan as fixed binary records for the runtime. (The engine file also holds it as JSON: see dump.py.)

The records are drawn in docs/engine-file.md and read by csrc/runtime/plan_records.cpp; both change together, with
the version of the engine file.
"""

import struct
from collections.abc import Mapping
from typing import Any

from legato.build.plan import (
    Attention,
    Embed,
    HeadsToCache,
    Linear,
    Logits,
    Norm,
    Op,
    Plan,
    SelectRows,
)
from legato.core.errors import ConfigError

__all__ = ["act_format", "encode_plan"]

_OPS: tuple[type[Op], ...] = (Embed, Norm, Linear, HeadsToCache, Attention, SelectRows, Logits)
_OP_CODES = {op.kind: code for code, op in enumerate(_OPS)}
_GROUP_KINDS = {"full": 0, "window": 1}
_DOMAINS = {"row": 0, "out": 1}
_NORMS = {"rms": 0, "layer": 1}
_ACTS = {"none": 0, "silu": 1, "gelu": 2, "gelu_tanh": 3, "relu": 4}
_EPILOGUES = {"store": 0, "add": 1, "glu": 2}

_HEAD = struct.Struct("<8I")  # vocab, hidden, max_position, groups, buffers, ropes, ops, reserved
_GROUP = struct.Struct("<5I12x")  # kind, window, layers, kv_heads, head_dim
_BUFFER = struct.Struct("<4I")  # width, activation type, group, domain
_ROPE = struct.Struct("<IId")  # dim, reserved, factor; then dim / 2 doubles
_OP = struct.Struct("<16i2f")


def act_format(name: str) -> tuple[int, int]:
    """An activation format as (type, group) of csrc/kernels/kernels.h. ConfigError for an unknown one."""
    formats = {"f32": (0, 0), "bf16": (1, 0), "s8g32": (2, 32), "s8g64": (2, 64)}
    if name not in formats:
        raise ConfigError(f"the native executor has no activation format {name!r}")
    return formats[name]


def encode_plan(plan: Plan) -> bytes:
    """The PLAN section. ConfigError names what the native executor cannot run."""
    buffers = {buffer.name: i for i, buffer in enumerate(plan.buffers)}
    tensors = {tensor.name: i for i, tensor in enumerate(plan.tensors)}
    counts = (len(plan.groups), len(plan.buffers), len(plan.ropes), len(plan.ops))
    parts = [_HEAD.pack(plan.vocab, plan.hidden, plan.max_position, *counts, 0)]
    for group, kv_heads, head_dim in zip(plan.groups, plan.kv_heads, plan.head_dims, strict=True):
        if group.kind not in _GROUP_KINDS:
            raise ConfigError(f"the native executor has no cache of kind {group.kind!r} (group {group.name!r})")
        parts.append(_GROUP.pack(_GROUP_KINDS[group.kind], group.window or 0, group.num_layers, kv_heads, head_dim))
    for tensor in plan.tensors:
        if tensor.views:
            raise ConfigError(f"the native executor cannot read {tensor.name!r} stored as {max(tensor.views)!r}")
    parts.extend(_BUFFER.pack(b.width, *act_format(b.format), _DOMAINS[b.domain]) for b in plan.buffers)
    for rope in plan.ropes:
        parts += _ROPE.pack(rope.dim, 0, rope.factor), struct.pack(f"<{len(rope.inv_freq)}d", *rope.inv_freq)
    parts.extend(_encode_op(op, buffers, tensors) for op in plan.ops)
    return b"".join(parts)


def _encode_op(op: Op, buffers: Mapping[str, int], tensors: Mapping[str, int]) -> bytes:
    if op.kind not in _OP_CODES:
        raise ConfigError(f"the native executor has no op {op.kind!r}")

    def attr(name: str, default: Any) -> Any:
        value = getattr(op, name, None)
        return default if value is None else value

    def index(table: Mapping[str, int], names: tuple[str, ...], i: int) -> int:
        name = getattr(op, names[i]) if i < len(names) else None
        return -1 if name is None else table[name]

    return _OP.pack(
        _OP_CODES[op.kind],
        index(buffers, op.reads, 0),
        index(buffers, op.writes, 0),
        index(tensors, op.weights, 0),
        index(tensors, op.weights, 1),
        _EPILOGUES[attr("epilogue", "store")],
        _ACTS[attr("act", "none")],
        _NORMS[attr("norm", "rms")],
        attr("group", 0),
        attr("layer", 0),
        attr("heads", 0),
        attr("kv_heads", 0),
        attr("head_dim", 0),
        attr("rope", -1),
        attr("window", 0),
        attr("column", 0),
        attr("scale", 1.0),
        attr("eps", 0.0),
    )
