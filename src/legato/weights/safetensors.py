"""A reader of safetensors files.

Layout: u64 length of the header, the header (JSON: name -> dtype, shape, data_offsets from the start of the data),
the data. Nothing in the file is trusted.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from legato.weights.dtypes import row_bytes
from legato.weights.mapped import MappedFile, refuse_overlap
from legato.weights.messages import refuse, shown
from legato.weights.source import RawTensor, TensorInfo

__all__ = ["SafetensorsFile", "parse_json"]

_MAX_HEADER = 32 << 20  # bytes; headers of the largest models have a few MB
_MAX_DIMS = 8
_DTYPES = ("F32", "F16", "BF16")


class _DuplicateKeyError(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(f"key {shown(key)} occurs twice")
            seen.add(key)
    return result


def parse_json(raw: bytes, file: Path, what: str) -> dict[str, Any]:
    """A JSON object without duplicate keys. CheckpointError names `file` and `what`."""
    try:
        value = json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:  # includes UnicodeDecodeError
        refuse(file, f"{what} is not valid JSON: {error}")
    if not isinstance(value, dict):
        refuse(file, f"{what} is not a JSON object")
    return value


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


class SafetensorsFile:
    """One safetensors file, mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        header, self._base = self._header()
        self._infos: dict[str, TensorInfo] = {}
        self._offsets: dict[str, int] = {}
        spans = []
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            info, begin, end = self._tensor(name, entry)
            self._infos[name] = info
            self._offsets[name] = self._base + begin
            spans.append((begin, end, name))
        refuse_overlap(path, spans)

    def _header(self) -> tuple[dict[str, Any], int]:
        """The header and where the data starts."""
        data, size = self._file.data, self._file.size
        length = int.from_bytes(data[:8], "little")
        if size < 8 or length > size - 8:
            refuse(self.path, f"cut off or not a safetensors file: {size} bytes, a header of {length} bytes stated")
        if length > _MAX_HEADER:
            refuse(self.path, f"the header has {length} bytes; the limit is {_MAX_HEADER}")
        return parse_json(data[8 : 8 + length], self.path, "the header"), 8 + length

    def _tensor(self, name: str, entry: object) -> tuple[TensorInfo, int, int]:
        """The tensor's info and its begin and end in the data."""
        what = f"tensor {name}"
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            refuse(self.path, f"{what}: the header entry {shown(entry)} is not dtype, shape and data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if dtype not in _DTYPES:
            refuse(self.path, f"{what} is {shown(dtype)}; supported: {', '.join(_DTYPES)}")
        if not isinstance(shape, list) or len(shape) > _MAX_DIMS or not all(map(_is_size, shape)):
            refuse(self.path, f"{what} has the shape {shown(shape)}, which is not a list of up to {_MAX_DIMS} sizes")
        if 0 in shape:
            refuse(self.path, f"{what} has the empty shape {shown(shape)}")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
            refuse(self.path, f"{what} has the data_offsets {shown(offsets)}, which are not two sizes")
        begin, end = offsets
        size = math.prod(shape) * (row_bytes(dtype, 1) or 0)
        if end - begin != size:
            refuse(self.path, f"{what}: {dtype} {shown(shape)} needs {size} bytes, data_offsets give {end - begin}")
        if self._base + end > self._file.size:
            refuse(
                self.path,
                f"{what} needs {self._base + end} bytes of file, which has {self._file.size}: cut off or damaged",
            )
        return TensorInfo(name, tuple(shape), dtype, str(self.path)), begin, end

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def read(self, name: str) -> RawTensor:
        """KeyError if there is no such tensor."""
        info = self._infos[name]
        k = info.shape[-1] if info.shape else 1
        rows = self._file.rows(self._offsets[name], math.prod(info.shape[:-1]), row_bytes(info.dtype, k) or 0)
        return RawTensor(info, rows)

    def close(self) -> None:
        self._file.close()
