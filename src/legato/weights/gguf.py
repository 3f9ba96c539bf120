"""A reader of GGUF files, versions 2 and 3, little-endian.

Layout: "GGUF", u32 version, u64 tensor count, u64 pair count, the key-value pairs, the tensor infos, padding to
`general.alignment`, tensor data. A string is a u64 length and UTF-8 bytes; an array is a u32 element type, a u64
count and the elements. A tensor info is name, u32 dimension count, u64 dimensions (innermost first), u32 type, u64
offset from the start of the data.

Nothing in the file is trusted: every length is compared with what is left of the file before it is used.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from legato.weights.dtypes import BLOCKS, SUPPORTED, row_bytes
from legato.weights.mapped import MappedFile, refuse_overlap
from legato.weights.messages import refuse
from legato.weights.source import RawTensor, TensorInfo

__all__ = ["GgufFile"]

_MAX_HEADER = 256 << 20  # bytes; the largest known vocabularies need 20 MB
_MAX_ELEMENTS = 1 << 24  # elements of all arrays together, which become Python objects
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 20
_MAX_NESTING = 4
_MAX_DIMS = 4

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}

_TENSOR_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip


class _Cursor:
    """Reads forward through the header; `what` names the thing being read, for messages."""

    def __init__(self, data: mmap.mmap, size: int, file: Path) -> None:
        self.data = data
        self.end = min(size, _MAX_HEADER)
        self.position = 0
        self.file = file
        self.elements = _MAX_ELEMENTS  # that may still come

    def fail(self, message: str) -> NoReturn:
        refuse(self.file, message)

    def need(self, size: int, what: str) -> int:
        """Steps over `size` bytes and returns where they start."""
        start = self.position
        if size > self.end - start:
            limit = "the end of the file" if self.end < _MAX_HEADER else f"the header limit of {_MAX_HEADER} bytes"
            self.fail(f"{what} runs past {limit}")
        self.position = start + size
        return start

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self.data, self.need(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack_from(self.data, self.need(8, what))[0])

    def count(self, least: int, most: int, what: str) -> int:
        """A u64 count of things that take at least `least` bytes each."""
        count = self.u64(what)
        if count > (self.end - self.position) // least:
            self.fail(f"{what} is {count}, more than the file can hold")
        if count > most:
            self.fail(f"{what} is {count}; the limit is {most}")
        return count

    def string(self, what: str) -> str:
        size = self.u64(what)
        start = self.need(size, what)
        return self.decode(self.data[start : start + size], what)

    def strings(self, count: int, what: str) -> list[str]:
        """As `string`, `count` times; inlined, since vocabularies hold 10^5 of them."""
        data, end, position, unpack = self.data, self.end, self.position, _U64.unpack_from
        parts = []
        for i in range(count):
            if end - position < 8:
                self.fail(f"{what}[{i}] runs past the end of the file")
            start = position + 8
            position = start + unpack(data, position)[0]
            if position > end:
                self.fail(f"{what}[{i}] runs past the end of the file")
            parts.append(data[start:position])
        self.position = position
        try:
            return [part.decode() for part in parts]
        except UnicodeDecodeError:
            return [self.decode(part, f"{what}[{i}]") for i, part in enumerate(parts)]

    def decode(self, raw: bytes, what: str) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8")

    def numbers(self, kind: int, count: int, what: str) -> list[Any]:
        dtype = np.dtype(_NUMBERS[kind])
        start = self.need(count * dtype.itemsize, what)
        values = np.frombuffer(self.data, dtype, count, start)
        if kind == _BOOL:
            if np.any(values > 1):
                self.fail(f"{what} holds a truth value that is neither 0 nor 1")
            values = values.astype(bool)
        return list(values.tolist())

    def array(self, what: str, nesting: int) -> list[Any]:
        kind = self.u32(what)
        least = 8 if kind == _STRING else 12 if kind == _ARRAY else np.dtype(_NUMBERS.get(kind, "u1")).itemsize
        count = self.count(least, self.elements, f"the length of {what}")
        self.elements -= count
        if kind == _STRING:
            return self.strings(count, what)
        if kind == _ARRAY:
            if nesting == _MAX_NESTING:
                self.fail(f"{what}: arrays are nested more than {_MAX_NESTING} deep")
            return [self.array(f"{what}[{i}]", nesting + 1) for i in range(count)]
        if kind not in _NUMBERS:
            self.fail(f"{what} has the unknown element type {kind}")
        return self.numbers(kind, count, what)

    def value(self, what: str) -> Any:
        kind = self.u32(what)
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self.array(what, 1)
        if kind not in _NUMBERS:
            self.fail(f"{what} has the unknown type {kind}")
        return self.numbers(kind, 1, what)[0]


@dataclass(frozen=True, slots=True)
class _Extent:
    """Where a tensor lies, from the start of the file."""

    offset: int
    rows: int
    row_bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.rows * self.row_bytes


class GgufFile:
    """A GGUF file under its own key and tensor names. Arrays in `metadata` are lists."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        cursor = _Cursor(self._file.data, self._file.size, path)
        tensors, pairs = self._counts(cursor)
        self.metadata: Mapping[str, Any] = self._metadata(cursor, pairs)
        raw = [self._tensor_info(cursor) for _ in range(tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if isinstance(alignment, bool) or not isinstance(alignment, int) or alignment < 1 or alignment.bit_count() != 1:
            cursor.fail(f"general.alignment is {alignment!r}, not a power of two")
        self._infos: dict[str, TensorInfo] = {}
        self._extents: dict[str, _Extent] = {}
        base = -(-cursor.position // alignment) * alignment
        for info, offset in raw:
            if info.name in self._infos:
                cursor.fail(f"tensor {info.name} occurs twice")
            self._infos[info.name] = info
            self._extents[info.name] = self._extent(info, offset, base, alignment)
        refuse_overlap(path, ((extent.offset, extent.end, name) for name, extent in self._extents.items()))

    @staticmethod
    def _counts(cursor: _Cursor) -> tuple[int, int]:
        start = cursor.need(4, "the magic number")
        if cursor.data[start : start + 4] != b"GGUF":
            cursor.fail("not a GGUF file")
        version = cursor.u32("the version")
        if version not in (2, 3):
            hint = " (a big-endian file)" if version & 0xFFFF == 0 else ""
            cursor.fail(f"GGUF version {version}{hint} is not supported; supported: 2 and 3, little-endian")
        return cursor.count(24, _MAX_TENSORS, "the tensor count"), cursor.count(13, _MAX_KEYS, "the key count")

    @staticmethod
    def _metadata(cursor: _Cursor, pairs: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for i in range(pairs):
            key = cursor.string(f"metadata key {i}")
            if key in metadata:
                cursor.fail(f"key {key} occurs twice")
            metadata[key] = cursor.value(f"key {key}")
        return metadata

    def _tensor_info(self, cursor: _Cursor) -> tuple[TensorInfo, int]:
        """The info and the offset from the start of the data."""
        name = cursor.string("a tensor's name")
        what = f"tensor {name}"
        dims = cursor.u32(what)
        if not 1 <= dims <= _MAX_DIMS:
            cursor.fail(f"{what} has {dims} dimensions; supported: 1 to {_MAX_DIMS}")
        shape = tuple(reversed([cursor.u64(what) for _ in range(dims)]))
        kind = cursor.u32(what)
        dtype = _TENSOR_TYPES.get(kind, f"of the unknown type {kind}")
        if dtype not in BLOCKS:
            cursor.fail(f"{what} is {dtype}; supported: {SUPPORTED}")
        return TensorInfo(name, shape, dtype, str(self.path)), cursor.u64(what)

    def _extent(self, info: TensorInfo, offset: int, base: int, alignment: int) -> _Extent:
        what = f"tensor {info.name}"
        if 0 in info.shape:
            refuse(self.path, f"{what} has the empty shape {info.shape}")
        size = row_bytes(info.dtype, info.shape[-1])
        if size is None:
            refuse(self.path, f"{what}: rows of {info.shape[-1]} values are not whole {info.dtype} blocks")
        if offset % alignment:
            refuse(self.path, f"{what}: offset {offset} is not a multiple of the alignment {alignment}")
        extent = _Extent(base + offset, math.prod(info.shape[:-1]), size)
        if extent.end > self._file.size:
            refuse(
                self.path,
                f"{what} needs {extent.end} bytes of file, which has {self._file.size}: the file is cut off or damaged",
            )
        return extent

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def read(self, name: str) -> RawTensor:
        return RawTensor(self._infos[name], self.rows(name))

    def rows(self, name: str) -> npt.NDArray[np.uint8]:
        """uint8 of shape (rows, bytes per row), mapped."""
        extent = self._extents[name]
        return self._file.rows(extent.offset, extent.rows, extent.row_bytes)

    def close(self) -> None:
        self._file.close()
