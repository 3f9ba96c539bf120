"""Collects the tensors, buffers, ropes, cache groups and ops of one plan; checks each tensor against the checkpoint."""

import fnmatch
from collections.abc import Sequence

from legato.build.plan import Buffer, Op, Plan, Rope, Tensor
from legato.core.errors import CheckpointError
from legato.core.types import CacheGroup
from legato.models.spec import Arch, Norm
from legato.quant.formats import FORMATS, format_for_source
from legato.weights.source import TensorInfo, TensorSource

__all__ = ["ASKED_FORMATS", "PlanBuilder"]

# What a user may ask for -> the format of linear weights ("auto": the checkpoint's own).
ASKED_FORMATS = {"auto": None, "fp32": "f32", "bf16": "bf16", "int8": "int8", "int4": "int4"}
_DTYPES = frozenset({"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"})
_FOUR_BITS = frozenset({"q4_0", "q4_1"})
_QUANTIZED = _FOUR_BITS | {"q8_0"}


class PlanBuilder:
    """One plan in the making. Names of buffers and tensors are returned, to be used as operands of ops."""

    def __init__(self, arch: Arch, source: TensorSource, asked: str) -> None:
        self.arch = arch
        self.ops: list[Op] = []
        self._asked = ASKED_FORMATS[asked]
        self._infos = source.tensors()
        self._file = source.config_file
        self._used: set[str] = set()
        self._tensors: dict[str, Tensor] = {}
        self._buffers: dict[str, Buffer] = {}
        self._ropes: list[Rope] = []
        self.cached: dict[int, tuple[int, int]] = {}  # layer of the model -> its cache group and layer, to be shared
        self._groups: dict[tuple[str, int | None, int, int], int] = {}  # key -> layers so far

    # ------------------------------------------------------------------------------------------------ checkpoint

    def has(self, name: str) -> bool:
        return name in self._infos

    def take(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        """A checkpoint tensor that must exist with this shape; marks it as used."""
        info = self._infos.get(name)
        if info is None:
            raise CheckpointError(f"{self._file}: {self.arch.name}: tensor '{name}' is missing")
        if info.shape != shape:
            raise CheckpointError(f"{info.file}: tensor '{name}' has shape {list(info.shape)}, not {list(shape)}")
        if info.dtype not in _DTYPES:
            raise CheckpointError(f"{info.file}: tensor '{name}' has dtype {info.dtype}, which is not supported")
        self._used.add(name)
        return info

    def format_of(self, name: str, shape: tuple[int, ...], *, lowest: str = "int4") -> str:
        """The format that linear weight `name` gets. lowest "int8": such a tensor is not made 4-bit by us.

        Nor is one whose rows are not whole 4-bit groups.
        """
        own = format_for_source(self.take(name, shape).dtype)
        if self._asked is None:
            return own
        if self._asked != "int4":
            return self._asked
        if own in _FOUR_BITS or (lowest == "int8" and own in _QUANTIZED):
            return own
        return lowest if shape[-1] % FORMATS["int4"].group == 0 else "int8"

    # ---------------------------------------------------------------------------------------------- plan tensors

    def _add_tensor(self, tensor: Tensor) -> str:
        assert self._tensors.get(tensor.name, tensor) == tensor, tensor.name
        self._tensors[tensor.name] = tensor
        return tensor.name

    def linear(
        self,
        name: str,
        sources: Sequence[str],
        rows: Sequence[int],
        k: int,
        format: str,
        *,
        interleave: bool = False,
        views: Sequence[str] = (),
    ) -> str:
        """Rows of `sources` one after the other (or interleaved), packed as one matrix."""
        shape = (sum(rows), k)
        return self._add_tensor(Tensor(name, "linear", shape, tuple(sources), format, interleave, _views(views)))

    def vector(
        self,
        name: str,
        sources: Sequence[str],
        sizes: Sequence[int],
        *,
        interleave: bool = False,
        views: Sequence[str] = (),
    ) -> str:
        for source, size in zip(sources, sizes, strict=True):
            self.take(source, (size,))
        shape = (sum(sizes),)
        return self._add_tensor(Tensor(name, "vector", shape, tuple(sources), "f32", interleave, _views(views)))

    def norm(self, name: str, source: str, norm: Norm, width: int) -> tuple[str, str | None]:
        """(weight, bias) of a norm over `width` values; `name` and `source` are prefixes."""
        path = f"{source}{norm.name}"
        name = f"{name}{norm.name}"
        weight = self.vector(name, [f"{path}.weight"], [width], views=[norm.view])
        return weight, self.vector(f"{name}.bias", [f"{path}.bias"], [width]) if norm.bias else None

    def array(self, name: str, source: str, shape: tuple[int, ...]) -> str:
        self.take(source, shape)
        return self._add_tensor(Tensor(name, "array", shape, (source,), "f32"))

    def experts(
        self, name: str, sources: Sequence[str], stored: tuple[int, ...], shape: tuple[int, int, int], view: str = ""
    ) -> str:
        """One (n, k) matrix per expert, joined from sources of shape `stored`."""
        formats = {self.format_of(source, stored) for source in sources}
        format = formats.pop() if len(formats) == 1 else "f32"
        return self._add_tensor(
            Tensor(name, "experts", shape, tuple(sources), format, views=_views([view] * len(sources)))
        )

    def table(self, name: str, source: str, rows: int, width: int) -> str:
        own = format_for_source(self.take(source, (rows, width)).dtype)
        return self._add_tensor(Tensor(name, "table", (rows, width), (source,), own))

    # ----------------------------------------------------------------------------------- buffers, ropes, groups

    def buffer(self, name: str, width: int, format: str = "f32", domain: str = "row") -> str:
        """A buffer shared by all that ask for the same name, width, format and domain."""
        name = f"{name}.{format}" if format != "f32" else name
        if name in self._buffers and self._buffers[name].width != width:
            name = f"{name}.{width}"
        buffer = Buffer(name, width, format, domain)
        assert self._buffers.setdefault(name, buffer) == buffer, name
        return name

    def width(self, buffer: str) -> int:
        return self._buffers[buffer].width

    def domain(self, buffer: str) -> str:
        return self._buffers[buffer].domain

    def activation(self, weight: str) -> str:
        """The activation format that a weight is multiplied with."""
        return FORMATS[self._tensors[weight].format].activation

    def rows(self, weight: str) -> int:
        return self._tensors[weight].shape[0]

    def rope(self, rope: Rope) -> int:
        if rope not in self._ropes:
            self._ropes.append(rope)
        return self._ropes.index(rope)

    def cache_layer(self, kind: str, window: int | None, kv_heads: int, head_dim: int) -> tuple[int, int]:
        """A new layer in the cache group of this kind and shape: (group, layer within it)."""
        key = (kind, window, kv_heads, head_dim)
        layer = self._groups.get(key, 0)
        self._groups[key] = layer + 1
        return list(self._groups).index(key), layer

    # ---------------------------------------------------------------------------------------------------- finish

    def finish(self, max_position: int) -> Plan:
        """The plan. Raises CheckpointError for tensors of the checkpoint that nothing reads."""
        for name in sorted(set(self._infos) - self._used):
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.arch.ignored):
                raise CheckpointError(
                    f"{self._infos[name].file}: tensor '{name}' is not part of {self.arch.name} as configured"
                )
        return Plan(
            architecture=self.arch.name,
            vocab=self.arch.vocab,
            hidden=self.arch.hidden,
            max_position=max_position,
            kv_heads=tuple(key[2] for key in self._groups),
            head_dims=tuple(key[3] for key in self._groups),
            groups=tuple(
                CacheGroup(f"{kind}{window or ''}.{heads}x{dim}", kind, window, layers, 0)
                for (kind, window, heads, dim), layers in self._groups.items()
            ),
            tensors=tuple(self._tensors.values()),
            buffers=tuple(self._buffers.values()),
            ropes=tuple(self._ropes),
            ops=tuple(self.ops),
        )


def _views(views: Sequence[str]) -> tuple[str, ...]:
    return tuple(views) if any(views) else ()
