"""The engine file: a plan and its packed weights in one memory-mapped container. The layout is in docs/engine-file.md.

Writing goes to a temporary file that is synced and renamed, so that a file under its own name is always whole.
"""

import errno
import hashlib
import json
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, BinaryIO

from legato.build.dump import from_json, to_json
from legato.build.encode import encode_plan
from legato.build.plan import Plan
from legato.core.errors import CheckpointError, ConfigError
from legato.tokenizer.assets import TextAssets
from legato.weights.cache_dir import sync_folder

__all__ = ["ALIGN", "VERSION", "EngineFile", "Section", "TensorRecord", "parse_engine", "write_engine"]

Bytes = bytes | memoryview

MAGIC = b"LEGATOEF"
VERSION = 1
ALIGN = 64  # of every tensor and section

_HEADER = struct.Struct("<8sIIQQ32s")  # magic, version, sections, file size, header size, sha256 of the header
_SECTION = struct.Struct("<IIQQ32s8x")  # kind, reserved, offset, size, sha256
_TENSOR = struct.Struct("<10I3Q32s")
_HASH_AT = _HEADER.size - 32
_SENT_TOGETHER = 8 << 20  # bytes
_META = {"legato", "model", "fingerprint", "format", "text"}  # beside the plan


class Section(IntEnum):
    """Kinds of sections, in file order."""

    META = 1
    PLAN = 2
    TENSORS = 3
    DATA = 4


_HEADER_SIZE = _HEADER.size + len(Section) * _SECTION.size


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """One tensor of the plan, at the same index as in `Plan.tensors`.

    kind: 0 linear, 1 table, 2 vector. type: WeightType of a linear, TableType of a table, 0 for a vector.
    layout: the packed layout of csrc/kernels/pack.h, 0 for tables and vectors. offset is absolute in the file.
    panel_bytes: of one 64-column panel; for a table, of one row; for a vector, 4.
    """

    kind: int
    type: int
    layout: int
    n: int
    k: int
    n_pad: int
    k_pad: int
    group: int
    zero: int
    has_min: int
    offset: int
    size: int
    panel_bytes: int
    sha256: bytes = bytes(32)

    def pack(self) -> bytes:
        return _TENSOR.pack(*(getattr(self, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class EngineFile:
    """A checked engine file: what Python needs of it. Tensor bytes stay on disk."""

    path: Path
    meta: Mapping[str, Any]  # legato, model, fingerprint, format, text
    plan: Plan
    tensors: tuple[TensorRecord, ...]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "EngineFile":
        """Reads all but the tensor bytes and checks their hashes. CheckpointError names the file and the fault."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                return parse_engine(path, file, os.fstat(file.fileno()).st_size)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot read the engine file: {error.strerror}") from error

    @property
    def text_assets(self) -> TextAssets:
        """Tokenizer, chat template and end tokens."""
        return TextAssets.from_json(self.meta["text"])

    def digest(self) -> str:
        """SHA-256 of the header in hex. It covers the hashes of all other parts, so it stands for the whole file."""
        with self.path.open("rb") as file:
            return file.read(_HEADER.size)[_HASH_AT:].hex()

    def verify(self) -> None:
        """Checks the hash of every tensor. CheckpointError names the file and the tensor."""
        with self.path.open("rb") as file:
            for tensor, record in zip(self.plan.tensors, self.tensors, strict=True):
                file.seek(record.offset)
                if _hash_stream(file, record.size) != record.sha256:
                    raise CheckpointError(f"{self.path}: tensor {tensor.name!r} is damaged (hash differs)")


def parse_engine(path: Path, file: BinaryIO, size: int) -> EngineFile:
    """Checks and reads an open engine file of `size` bytes; `path` is for messages."""

    def fail(what: str) -> CheckpointError:
        return CheckpointError(f"{path}: not a usable engine file: {ascii(what)[1:-1]}")

    header = file.read(_HEADER_SIZE)
    if len(header) < _HEADER_SIZE or header[:8] != MAGIC:
        raise fail("no engine file header")
    _, version, count, file_size, header_size, digest = _HEADER.unpack_from(header)
    if version != VERSION:
        raise fail(f"version {version}, this build reads {VERSION}")
    if (count, header_size) != (len(Section), _HEADER_SIZE) or file_size != size:
        raise fail(f"header sizes do not match the file ({size} bytes)")
    if digest != _header_hash(header):
        raise fail("header hash differs")
    sections: dict[Section, bytes] = {}
    for i, kind in enumerate(Section):
        got, _, offset, length, digest = _SECTION.unpack_from(header, _HEADER.size + i * _SECTION.size)
        if got != kind or offset % ALIGN or offset < _HEADER_SIZE or offset > size or length > size - offset:
            raise fail(f"section {kind.name} lies outside the file")
        if kind is not Section.DATA:
            file.seek(offset)
            sections[kind] = file.read(length)
            if hashlib.sha256(sections[kind]).digest() != digest:
                raise fail(f"section {kind.name} is damaged (hash differs)")
    try:
        meta = json.loads(sections[Section.META])
        plan = from_json(meta.pop("plan"))
        if set(meta) != _META or not all(isinstance(value, str) for value in meta.values()):
            raise ValueError(f"META must hold the texts {', '.join(sorted(_META))}")
        records = tuple(TensorRecord(*values) for values in _TENSOR.iter_unpack(sections[Section.TENSORS]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise fail(f"metadata is malformed ({error})") from error
    if len(records) != len(plan.tensors):
        raise fail(f"{len(records)} tensor records for {len(plan.tensors)} tensors")
    for tensor, record in zip(plan.tensors, records, strict=True):
        if record.offset > size or record.size > size - record.offset:
            raise fail(f"tensor {tensor.name!r} lies outside the file")
    return EngineFile(path, meta, plan, records)


def write_engine(
    path: Path, plan: Plan, meta: Mapping[str, Any], tensors: Iterable[tuple[TensorRecord, Bytes]]
) -> None:
    """Writes an engine file; replaces `path` only when all of it is on disk.

    tensors: record and bytes for each of plan.tensors in order; offset and hash of the record are filled in here.
    ConfigError names a file that cannot be written (a full disk, say); nothing is left behind then.
    """
    temp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temp.open("xb") as file:
            _write(file, plan, meta, tensors)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temp, path)
        sync_folder(path.parent)
    except OSError as error:
        reason = "no space left on the disk" if error.errno == errno.ENOSPC else error.strerror
        raise ConfigError(f"cannot write the engine file {path}: {reason}") from error
    finally:
        temp.unlink(missing_ok=True)


def _write(file: BinaryIO, plan: Plan, meta: Mapping[str, Any], tensors: Iterable[tuple[TensorRecord, Bytes]]) -> None:
    document = json.dumps({**meta, "plan": to_json(plan)}, separators=(",", ":"), allow_nan=False)
    payload = {Section.META: document.encode(), Section.PLAN: encode_plan(plan)}
    table_size = len(plan.tensors) * _TENSOR.size
    offsets, sizes = {}, {}
    file.write(bytes(_HEADER_SIZE))
    for kind, content in (*payload.items(), (Section.TENSORS, bytes(table_size))):
        offsets[kind], sizes[kind] = _pad(file), len(content)
        file.write(content)
    offsets[Section.DATA] = _pad(file)
    records = []
    sent = 0
    for record, data in tensors:
        offset = _pad(file)
        file.write(data)
        sent = _send(file, sent)
        records.append(replace(record, offset=offset, sha256=hashlib.sha256(data).digest()))
    size = _pad(file)
    sizes[Section.DATA] = size - offsets[Section.DATA]
    if len(records) != len(plan.tensors):
        raise ValueError(f"{len(records)} tensors written for a plan of {len(plan.tensors)}")
    payload[Section.TENSORS] = b"".join(record.pack() for record in records)
    file.seek(offsets[Section.TENSORS])
    file.write(payload[Section.TENSORS])
    header = bytearray(_HEADER.pack(MAGIC, VERSION, len(Section), size, _HEADER_SIZE, bytes(32)))
    for kind in Section:
        digest = hashlib.sha256(payload[kind]).digest() if kind in payload else bytes(32)
        header += _SECTION.pack(kind, 0, offsets[kind], sizes[kind], digest)
    header[_HASH_AT : _HEADER.size] = _header_hash(header)
    file.seek(0)
    file.write(header)


def _send(file: BinaryIO, begin: int) -> int:
    """Sends what was written from `begin` on to the disk while packing goes on; else all of it would wait for the sync.

    Returns where the next call begins. Pages on their way stay in memory, whatever the name of the advice.
    """
    file.flush()
    end = file.tell()
    if end - begin < _SENT_TOGETHER:
        return begin
    os.posix_fadvise(file.fileno(), begin, end - begin, os.POSIX_FADV_DONTNEED)
    return end


def _header_hash(header: bytes | bytearray) -> bytes:
    """Over the header and the section table, with the hash itself as zeros."""
    return hashlib.sha256(header[:_HASH_AT] + bytes(32) + header[_HEADER.size :]).digest()


def _pad(file: BinaryIO) -> int:
    """Zero bytes up to the next multiple of ALIGN; returns that offset."""
    file.write(bytes(-file.tell() % ALIGN))
    return file.tell()


def _hash_stream(file: BinaryIO, size: int) -> bytes:
    digest = hashlib.sha256()
    while size > 0 and (chunk := file.read(min(size, 1 << 22))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.digest()
