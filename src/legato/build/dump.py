"""A plan as JSON (for the engine file) and as text (for `legato inspect` and golden dumps). Both are deterministic."""

from dataclasses import asdict, fields
from typing import Any

from legato.build.plan import Buffer, Op, Plan, Rope, Tensor
from legato.build.verify import CHECKS
from legato.core.types import CacheGroup

__all__ = ["dump", "from_json", "to_json"]

_OPS: dict[str, type[Op]] = {cls.kind: cls for cls in CHECKS}
_PARTS: dict[str, Any] = {"groups": CacheGroup, "tensors": Tensor, "buffers": Buffer, "ropes": Rope}


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan as dicts, lists and numbers for json.dumps; ops carry their kind. `from_json` is its inverse."""
    return asdict(plan) | {"ops": [{"op": op.kind, **asdict(op)} for op in plan.ops]}


def from_json(document: Any) -> Plan:
    """The plan that `to_json` gave, not verified. Raises ValueError for anything else."""
    try:
        document = dict(document)
        values = {f.name: _tuples(document.pop(f.name)) for f in fields(Plan)}
        for name, cls in _PARTS.items():
            values[name] = tuple(cls(**part) for part in values[name])
        values["ops"] = tuple(_OPS[op.pop("op")](**op) for op in values["ops"])
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        raise ValueError(f"plan is damaged: {e}") from e
    if document:
        raise ValueError(f"plan is damaged: unknown key '{min(document)}'")
    return Plan(**values)


def _tuples(value: Any) -> Any:
    """JSON lists back to tuples, at every depth."""
    if isinstance(value, list):
        return tuple(_tuples(v) for v in value)
    if isinstance(value, dict):
        return {key: _tuples(v) for key, v in value.items()}
    return value


def dump(plan: Plan) -> str:
    """Text with one line per part and per op: `op  writes <- reads | weights | other fields`."""
    lines = [
        f"plan {plan.architecture}  vocab {plan.vocab}  hidden {plan.hidden}  max_position {plan.max_position}",
        "groups",
    ]
    for i, (group, heads, dim) in enumerate(zip(plan.groups, plan.kv_heads, plan.head_dims, strict=True)):
        lines.append(f"  {i} {group.name}  layers {group.num_layers}  kv_heads {heads}  head_dim {dim}")
    lines.append("ropes")
    for i, rope in enumerate(plan.ropes):
        span = f"{rope.inv_freq[0]:.6g} .. {rope.inv_freq[-1]:.6g}"
        lines.append(f"  {i} dim {rope.dim}  inv_freq {span}  factor {rope.factor:.6g}")
    lines.append("buffers")
    lines += [f"  {b.name}  {b.format} {b.domain} {b.width}" for b in plan.buffers]
    lines.append("tensors")
    for t in plan.tensors:
        shape = " x ".join(map(str, t.shape))
        sources = [f"{s} ({v})" if v else s for s, v in zip(t.sources, t.views or [""] * len(t.sources), strict=True)]
        if len(sources) > 4:
            sources[1:-1] = [f"{len(sources) - 2} more"]
        joint = " / " if t.interleave else " + "
        lines.append(f"  {t.name}  {t.kind} {t.format} {shape}  <- {joint.join(sources)}")
    lines.append("ops")
    lines += [f"  {i} {_op(op)}" for i, op in enumerate(plan.ops)]
    return "\n".join(lines) + "\n"


def _op(op: Op) -> str:
    attrs = " ".join(f"{key}={_value(value)}" for key, value in op.attrs().items())
    writes, reads, weights = (", ".join(op.named(names)) for names in (op.writes, op.reads, op.weights))
    return f"{op.kind}  {writes} <- {reads} | {weights} | {attrs}"


def _value(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
