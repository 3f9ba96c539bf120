"""What lowering of a layer works with: its names, its matrices, its normed input, and where its results go."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from legato.build import plan as ops
from legato.build import plan_declared as declared
from legato.build.builder import PlanBuilder
from legato.models.spec import Body, GatedMlp, LongRope, Norm, Proj, Rope

__all__ = ["Bodies", "Input", "Out", "Scope"]

Bodies = Mapping[type[Body], Callable[["Scope", "Input", Any, "Out"], None]]


@dataclass(frozen=True, slots=True)
class Out:
    """Where a body's last matrix goes: added to a buffer times `scale`, or stored there."""

    buffer: str
    epilogue: str
    scale: float = 1.0


class Scope:
    """The builder within one layer: `source` prefixes names of the checkpoint, `name` those of the plan."""

    def __init__(
        self, b: PlanBuilder, source: str, name: str, bodies: Bodies, *, max_position: int, index: int = -1
    ) -> None:
        self.b = b
        self.x = "x"
        self.index = index  # of the layer
        self._source = source
        self._name = name
        self._bodies = bodies
        self._max_position = max_position

    def body(self, x: "Input", body: Body, out: Out) -> None:
        self._bodies[type(body)](self, x, body, out)

    # --------------------------------------------------------------------------------------------------- weights

    def linear(self, name: str, projs: Sequence[Proj], rows: Sequence[int], k: int) -> list[tuple[str, str | None]]:
        """(weight, bias) of neighbouring projections, as few matrices as formats and biases allow."""
        formats = [self._format(p, n, k) for p, n in zip(projs, rows, strict=True)]
        parts = list(zip(formats, projs, rows, strict=True))
        result: list[tuple[str, str | None]] = []
        for (format, _), run in groupby(parts, key=lambda part: (part[0], part[1].bias)):
            _, run_projs, run_rows = zip(*run, strict=True)
            suffix = "" if len(run_projs) == len(projs) else f".{len(result)}"
            result.append(self._matrix(name + suffix, run_projs, run_rows, k, format, interleave=False))
        return result

    def one(self, name: str, proj: Proj, n: int, k: int) -> tuple[str, str | None]:
        """(weight, bias) of one projection."""
        [matrix] = self.linear(name, [proj], [n], k)
        return matrix

    def gate_up(self, name: str, body: GatedMlp, *, interleave: bool = True) -> tuple[str, str | None]:
        """(weight, bias) of gate and up as one matrix whose panels alternate, or that holds gate above up."""
        projs, k = body.gate_up, self.b.arch.hidden
        rows = [2 * body.width // len(projs)] * len(projs)
        formats = {self._format(p, n, k) for p, n in zip(projs, rows, strict=True)}
        format = formats.pop() if len(formats) == 1 else "f32"
        return self._matrix(name, projs, rows, k, format, interleave=interleave)

    def vector(self, name: str, source: str, size: int) -> str:
        return self.b.vector(self._name + name, [self._source + source], [size])

    def array(self, name: str, source: str, shape: tuple[int, ...]) -> str:
        return self.b.array(self._name + name, self._source + source, shape)

    def experts(
        self, name: str, sources: Sequence[str], stored: tuple[int, ...], shape: tuple[int, int, int], view: str = ""
    ) -> str:
        """One matrix per expert, joined from sources of shape `stored`."""
        return self.b.experts(self._name + name, [self._source + s for s in sources], stored, shape, view)

    def norm(self, norm: Norm, width: int) -> tuple[str, str | None]:
        """(weight, bias) of a norm over `width` values."""
        return self.b.norm(self._name, self._source, norm, width)

    def _format(self, proj: Proj, n: int, k: int) -> str:
        stored = (k, n) if proj.view == "columns" else (n, k)
        return self.b.format_of(f"{self._source}{proj.name}.weight", stored)

    def _matrix(
        self, name: str, projs: Sequence[Proj], rows: Sequence[int], k: int, format: str, *, interleave: bool
    ) -> tuple[str, str | None]:
        sources = [f"{self._source}{p.name}" for p in projs]
        views = [p.view for p in projs]
        name = self._name + name
        weights = [f"{s}.weight" for s in sources]
        weight = self.b.linear(name, weights, rows, k, format, interleave=interleave, views=views)
        if not projs[0].bias:
            return weight, None
        biases = [f"{s}.bias" for s in sources]
        row_views = ["" if v == "columns" else v for v in views]
        return weight, self.b.vector(f"{name}.bias", biases, rows, interleave=interleave, views=row_views)

    # ------------------------------------------------------------------------------------------------------- ops

    def add_linear(self, x: str, matrix: tuple[str, str | None], out: Out) -> None:
        self.b.ops.append(ops.Linear(x, out.buffer, *matrix, out.epilogue, scale=out.scale))

    def store(self, name: str, x: str, matrix: tuple[str, str | None]) -> str:
        """A new f32 buffer with x through a matrix."""
        out = self.b.buffer(name, self.b.rows(matrix[0]))
        self.b.ops.append(ops.Linear(x, out, *matrix, "store"))
        return out

    def add_norm(self, x: str, out: str, norm: Norm) -> None:
        self.b.ops.append(ops.Norm(x, out, *self.norm(norm, self.b.width(x)), norm.kind, norm.eps))

    def converted(self, x: str, weight: str) -> str:
        """x in the activation format that `weight` wants."""
        format = self.b.activation(weight)
        if format == "f32":
            return x
        out = self.b.buffer(x, self.b.width(x), format, self.b.domain(x))
        self.b.ops.append(declared.Convert(x, out))
        return out

    def rope(self, rope: Rope | LongRope | None) -> int | None:
        """Index of a rope in the plan."""
        if isinstance(rope, LongRope):
            rope = rope.short if self._max_position <= rope.original else rope.long
        return None if rope is None else self.b.rope(ops.Rope(rope.dim, rope.inv_freq, rope.factor))


class Input:
    """norm(x) (or x itself) in each activation format that a body's matrices ask for, computed once."""

    def __init__(self, scope: Scope, norm: Norm | None, x: str) -> None:
        self._scope = scope
        self._norm = norm
        self._x = x
        self._written: dict[str, str] = {}

    def for_weight(self, weight: str) -> str:
        """The buffer that meets `weight`."""
        format = self._scope.b.activation(weight)
        if format not in self._written:
            self._written[format] = self._write(weight, format)
        return self._written[format]

    def _write(self, weight: str, format: str) -> str:
        if self._norm is None:
            return self._scope.converted(self._x, weight)
        out = self._scope.b.buffer("normed", self._scope.b.width(self._x), format)
        self._scope.add_norm(self._x, out, self._norm)
        return out
