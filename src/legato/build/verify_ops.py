"""What each op of the grammar demands of its operands: widths, formats, domains, shapes, ranges."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from legato.build import plan as ops
from legato.build.plan import Buffer, Op, Plan, Tensor
from legato.core.errors import LegatoError
from legato.core.types import CacheGroup
from legato.quant.formats import FORMATS

__all__ = ["ACTIVATIONS", "CHECKS", "OpCheck", "PlanError", "attention", "heads", "heads_to_cache"]

ACTIVATIONS = frozenset({"none", "silu", "gelu", "gelu_tanh", "relu"})


class PlanError(LegatoError):
    """A plan breaks the grammar: a mistake in lowering, or a damaged file."""


class OpCheck:
    """Looks at one op; every method raises PlanError, naming the op, when its claim does not hold."""

    def __init__(self, plan: Plan, buffers: Mapping[str, Buffer], tensors: Mapping[str, Tensor], where: str) -> None:
        self.plan = plan
        self._buffers = buffers
        self._tensors = tensors
        self._where = where

    def require(self, condition: bool, message: str) -> None:
        if not condition:
            raise PlanError(f"{self._where}: {message}")

    def defined(self, op: Op) -> None:
        for name in (*op.named(op.reads), *op.named(op.writes)):
            self.require(name in self._buffers, f"buffer '{name}' is not defined")
        for name in op.named(op.weights):
            self.require(name in self._tensors, f"tensor '{name}' is not defined")

    def buffer(self, name: str, width: int, *, format: str | None = "f32", domain: str | None = None) -> None:
        """A buffer of this width and format (None: any) in this domain."""
        b = self._buffers[name]
        self.require(b.width == width, f"'{name}' is {b.width} wide, not {width}")
        self.require(format in (None, b.format), f"'{name}' is {b.format}, not {format}")
        self.require(domain in (None, b.domain), f"'{name}' is in the {b.domain} domain, not {domain}")

    def domain(self, name: str) -> str:
        return self._buffers[name].domain

    def width(self, name: str) -> int:
        return self._buffers[name].width

    def format(self, name: str) -> str:
        return self._buffers[name].format

    def tensor(self, name: str | None, kind: str, *shape: int, interleave: bool = False) -> None:
        """A weight of this kind and shape; None passes."""
        if name is None:
            return
        t = self._tensors[name]
        self.require(t.kind == kind, f"'{name}' is a {t.kind}, not a {kind}")
        self.require(t.shape == shape, f"'{name}' has shape {list(t.shape)}, not {list(shape)}")
        self.require(t.interleave == interleave, f"'{name}' must{'' if interleave else ' not'} be interleaved")

    def table(self, name: str, width: int) -> None:
        """A table of any number of rows."""
        self.tensor(name, "table", self._tensors[name].shape[0], width)

    def experts(self, x: str, gate_up: str, down: str, out: int) -> tuple[int, int]:
        """Both matrices of every expert; returns how many experts, and how many values in the middle of one."""
        first, second = self._tensors[gate_up], self._tensors[down]
        self.require(len(first.shape) == len(second.shape) == 3, f"'{gate_up}' and '{down}' are not three-dimensional")
        count, width, k = second.shape[0], second.shape[2], first.shape[2]
        self.tensor(gate_up, "experts", count, 2 * width, k)
        self.tensor(down, "experts", count, out, width)
        self.buffer(x, k, format=FORMATS[first.format].activation)
        return count, width

    def matrix(self, x: str, weight: str, *, interleave: bool = False) -> int:
        """weight is packed, and x comes in the format it is multiplied with. Returns the number of outputs."""
        t = self._tensors[weight]
        self.require(len(t.shape) == 2, f"'{weight}' has shape {list(t.shape)}")
        n, k = t.shape
        self.tensor(weight, "linear", n, k, interleave=interleave)
        self.buffer(x, k, format=FORMATS[t.format].activation)
        return n

    def rope(self, index: int | None, head_dim: int) -> None:
        if index is None:
            return
        self.require(0 <= index < len(self.plan.ropes), f"rope {index} is not defined")
        self.require(self.plan.ropes[index].dim <= head_dim, f"rope {index} is wider than a head")

    def cache(self, op: Any) -> None:
        """Group, layer and head shape of an op that works on the cache."""
        self._cache_layer(op)
        heads, dim = self.plan.kv_heads[op.group], self.plan.head_dims[op.group]
        self.require((op.kv_heads, op.head_dim) == (heads, dim), f"cache group {op.group} has {heads} heads of {dim}")
        self.require(op.heads % op.kv_heads == 0, f"{op.heads} heads do not share {op.kv_heads} KV heads")

    def latent(self, op: Any) -> None:
        """Group and layer of an op on cached latents."""
        self.state(op, op.rank + op.rope_dim, kind="latent")

    def state(self, op: Any, values: int, *, kind: str = "state") -> None:
        """Group and layer of an op on `values` cached values per position, or per sequence."""
        group = self._cache_layer(op)
        shape = (self.plan.kv_heads[op.group], self.plan.head_dims[op.group])
        self.require(
            (group.kind, shape) == (kind, (1, values)), f"cache group {op.group} does not hold {values} values"
        )

    def _cache_layer(self, op: Any) -> CacheGroup:
        """The cache group that holds the op's layer."""
        self.require(0 <= op.group < len(self.plan.groups), f"cache group {op.group} is not defined")
        group: CacheGroup = self.plan.groups[op.group]
        self.require(0 <= op.layer < group.num_layers, f"layer {op.layer} is not in its cache group")
        return group


def _embed(c: OpCheck, op: ops.Embed) -> None:
    c.table(op.table, c.width(op.out))
    c.buffer(op.out, c.width(op.out), domain="row")


def _norm(c: OpCheck, op: ops.Norm) -> None:
    width = c.width(op.x)
    c.require(op.norm in ("rms", "layer"), f"norm '{op.norm}'")
    c.require(op.norm == "layer" or op.bias is None, "an rms norm has no bias")
    c.require(math.isfinite(op.eps) and op.eps >= 0, f"eps {op.eps}")
    c.buffer(op.x, width)
    c.buffer(op.out, width, format=None, domain=c.domain(op.x))
    c.tensor(op.weight, "vector", width)
    c.tensor(op.bias, "vector", width)


def _linear(c: OpCheck, op: ops.Linear) -> None:
    glu = op.epilogue == "glu"
    n = c.matrix(op.x, op.weight, interleave=glu)
    width = c.width(op.out)
    c.tensor(op.bias, "vector", n, interleave=glu)
    c.require(op.epilogue in ("store", "add", "glu"), f"epilogue '{op.epilogue}'")
    c.require(op.act in ACTIVATIONS, f"activation '{op.act}'")
    c.require(op.epilogue != "add" or op.act == "none", "adding takes no activation")
    c.require(op.epilogue == "add" or op.scale == 1.0, "only adding takes a scale")
    c.require(op.epilogue == "store" or op.column == 0, "only storing takes a column")
    c.require(0 <= op.column <= width - n or glu, f"columns {op.column} to {op.column + n} are not in '{op.out}'")
    whole = n // 2 if glu else n
    partial = op.epilogue == "store" and n < width
    c.buffer(op.out, width if partial else whole, format=None, domain=c.domain(op.x))
    c.require(op.epilogue != "add" or c.format(op.out) == "f32", f"adds to '{op.out}', which is not f32")
    c.require(not partial or c.format(op.out) == "f32", f"writes a part of '{op.out}', which is not f32")


def heads(c: OpCheck, op: Any) -> None:
    """q, k and v heads in, q heads out, k and v to the cache; rotated."""
    c.cache(op)
    c.buffer(op.x, (op.heads + 2 * op.kv_heads) * op.head_dim, domain="row")
    c.buffer(op.out, op.heads * op.head_dim, domain="row")
    c.rope(op.rope, op.head_dim)


def heads_to_cache(c: OpCheck, op: Any) -> None:
    """`heads`, with norms of q and k."""
    heads(c, op)
    c.tensor(op.q_norm, "vector", op.head_dim)
    c.tensor(op.k_norm, "vector", op.head_dim)


def attention(c: OpCheck, op: Any) -> None:
    """q heads in, as many heads out, over the cache."""
    c.cache(op)
    group = c.plan.groups[op.group]
    c.require(op.window == group.window, f"window {op.window}, but cache group {op.group} keeps {group.window}")
    c.buffer(op.x, op.heads * op.head_dim, domain="row")
    c.buffer(op.out, op.heads * op.head_dim, format=None, domain="row")
    c.require(math.isfinite(op.scale), f"scale {op.scale}")


def _select_rows(c: OpCheck, op: ops.SelectRows) -> None:
    c.buffer(op.x, c.width(op.out), domain="row")
    c.buffer(op.out, c.width(op.x), domain="out")


def _logits(c: OpCheck, op: ops.Logits) -> None:
    c.require(c.domain(op.x) == "out", f"'{op.x}' is not in the out domain")
    n = c.matrix(op.x, op.weight)
    c.require(n == c.plan.vocab, f"{n} logits for a vocabulary of {c.plan.vocab}")
    c.tensor(op.bias, "vector", n)
    c.buffer(op.out, n, domain="out")


CHECKS: dict[type[Op], Callable[[OpCheck, Any], None]] = {
    ops.Embed: _embed,
    ops.Norm: _norm,
    ops.Linear: _linear,
    ops.HeadsToCache: heads_to_cache,
    ops.Attention: attention,
    ops.SelectRows: _select_rows,
    ops.Logits: _logits,
}
