"""Checks that a plan follows its grammar, before anything is packed or run from it."""

import math
from collections.abc import Sequence
from typing import TypeVar

from legato.build import plan as ops
from legato.build import plan_declared as declared
from legato.build import plan_streams as streams_ops
from legato.build.plan import Buffer, Op, Plan, Tensor
from legato.build.verify_declared import CHECKS as DECLARED_CHECKS
from legato.build.verify_ops import CHECKS as RUNNING_CHECKS
from legato.build.verify_ops import OpCheck, PlanError
from legato.quant.formats import FORMATS

__all__ = ["CHECKS", "PlanError", "verify"]

CHECKS = {**RUNNING_CHECKS, **DECLARED_CHECKS}

_BUFFER_FORMATS = frozenset({"f32", "bf16", "s8g32", "s8g64"})
_TENSOR_DIMS = {"linear": 2, "table": 2, "vector": 1, "experts": 3}
_RESULTS = (ops.Logits, declared.SoftCap, declared.Pool)
_WRITES_CACHE = (
    ops.HeadsToCache,
    declared.AxisHeadsToCache,
    declared.LatentToCache,
    streams_ops.NormedHeadsToCache,
    declared.StateSpace,
)
_READS_CACHE = (ops.Attention, declared.AlibiAttention, declared.LatentAttention, declared.SinkAttention)


def verify(plan: Plan) -> None:
    """Raise PlanError, naming op, buffer or tensor, unless the plan is whole and consistent."""
    _check_facts(plan)
    _check_tensors(plan)
    _check_buffers(plan)
    _check_ops(plan)
    _check_cache(plan)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise PlanError(message)


def _check_facts(plan: Plan) -> None:
    _require(min(plan.vocab, plan.hidden, plan.max_position) > 0, "vocab, hidden and max_position must be positive")
    _require(
        len(plan.kv_heads) == len(plan.head_dims) == len(plan.groups), "kv_heads, head_dims and groups differ in length"
    )
    for i, rope in enumerate(plan.ropes):
        _require(rope.dim > 0 and len(rope.inv_freq) * 2 == rope.dim, f"rope {i}: inv_freq does not fit dim {rope.dim}")
        _require(all(math.isfinite(f) and f >= 0 for f in rope.inv_freq), f"rope {i}: a frequency is out of range")
        _require(math.isfinite(rope.factor) and rope.factor > 0, f"rope {i}: factor {rope.factor}")


def _check_tensors(plan: Plan) -> None:
    for t in _unique("tensor", plan.tensors):
        where = f"tensor '{t.name}'"
        _require(t.kind in _TENSOR_DIMS or t.kind == "array", f"{where}: kind '{t.kind}'")
        dims = _TENSOR_DIMS.get(t.kind, len(t.shape))
        _require(len(t.shape) == dims > 0 and min(t.shape) > 0, f"{where}: shape {list(t.shape)}")
        _require(t.format in FORMATS, f"{where}: format '{t.format}'")
        _require(t.kind not in ("vector", "array") or t.format == "f32", f"{where}: a vector is f32")
        _require(len(t.views) in (0, len(t.sources)), f"{where}: views and sources differ in number")
        _require(0 < len(t.sources) == len(set(t.sources)), f"{where}: sources are absent or repeated")
        _require(t.kind != "table" or len(t.sources) == 1, f"{where}: a table has one source")
        pair = len(t.sources) <= 2 and t.shape[0] % 2 == 0 and t.kind in ("linear", "vector")
        _require(pair or not t.interleave, f"{where}: interleaving takes two equal sources, or one with both halves")
        group = FORMATS[t.format].group
        _require(group == 0 or t.shape[-1] % group == 0, f"{where}: rows are not whole groups of {group}")


def _check_buffers(plan: Plan) -> None:
    for b in _unique("buffer", plan.buffers):
        _require(b.width > 0, f"buffer '{b.name}': width {b.width}")
        _require(b.format in _BUFFER_FORMATS, f"buffer '{b.name}': format '{b.format}'")
        _require(b.domain in ("row", "out"), f"buffer '{b.name}': domain '{b.domain}'")


def _check_ops(plan: Plan) -> None:
    """Each op's own demands; buffers are written before they are read; everything defined is used."""
    buffers = {b.name: b for b in plan.buffers}
    tensors = {t.name: t for t in plan.tensors}
    filled: dict[str, int] = {}  # buffer -> columns that hold values
    read: set[str] = set()
    used: set[str] = set()
    for i, op in enumerate(plan.ops):
        where = f"op {i} ({op.kind})"
        _require(type(op) in CHECKS, f"{where}: is not in the grammar")
        check = OpCheck(plan, buffers, tensors, where)
        check.defined(op)
        CHECKS[type(op)](check, op)
        for name in op.named(op.reads):
            _require(filled.get(name) == buffers[name].width, f"{where}: '{name}' is read before it is written")
        read.update(op.named(op.reads))
        used.update(op.named(op.weights))
        for name in op.named(op.writes):
            filled[name] = _filled_after(op, where, filled.get(name, 0), buffers[name].width, tensors)
    last = plan.ops[-1] if plan.ops else None
    _require(isinstance(last, _RESULTS), "the last op is not logits")
    read.update(last.named(last.writes) if last else ())
    for name in buffers:
        _require(name in read, f"buffer '{name}' is never read")
    for name in tensors:
        _require(name in used, f"tensor '{name}' is never used")


def _filled_after(op: Op, where: str, filled: int, width: int, tensors: dict[str, Tensor]) -> int:
    """Columns that hold values after `op`: stores go from left to right, and one at column 0 begins anew."""
    if not isinstance(op, ops.Linear) or op.epilogue == "glu":
        return width
    if op.epilogue == "add":
        _require(filled == width, f"{where}: adds to '{op.out}' before it is written")
        return width
    _require(op.column in (0, filled), f"{where}: leaves a gap in '{op.out}'")
    return op.column + tensors[op.weight].shape[0]


def _check_cache(plan: Plan) -> None:
    """Layers of a group are dense, written once each in order, and read only after that."""
    written = [0] * len(plan.groups)
    for i, op in enumerate(plan.ops):
        if isinstance(op, _WRITES_CACHE):
            _require(op.layer == written[op.group], f"op {i} ({op.kind}): layer {op.layer} is out of order")
            written[op.group] += 1
        elif isinstance(op, _READS_CACHE):
            _require(op.layer < written[op.group], f"op {i} ({op.kind}): layer {op.layer} is not written yet")
    for g, group in enumerate(plan.groups):
        _require(written[g] == group.num_layers > 0, f"cache group {g}: {written[g]} of {group.num_layers} layers")
        _require((group.kind == "window") == (group.window is not None), f"cache group {g}: kind and window differ")
        _require(group.window is None or group.window > 0, f"cache group {g}: window {group.window}")


_N = TypeVar("_N", Buffer, Tensor)


def _unique(what: str, items: Sequence[_N]) -> Sequence[_N]:
    seen: set[str] = set()
    for item in items:
        _require(item.name not in seen, f"{what} '{item.name}' is defined twice")
        seen.add(item.name)
    return items
