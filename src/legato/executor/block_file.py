"""A file of KV cache blocks: labelled, checked when read, and remade where it is not what is expected.

    header    4,096 bytes: magic, then what the blocks belong to as JSON, then zeros
    records   per group and slot: CRC-32 of label and block, label; a label of zeros: the slot is empty
    blocks    per group and slot

Nothing is written in any order and nothing is synced: a block that a crash left half-written fails its checksum. Plain
reads and writes instead of a mapping: a full disk or a file cut short is an error to be handled, not a signal, and
what the kernel keeps of the file does not count as memory of this process.
"""

import errno
import fcntl
import json
import logging
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

__all__ = ["BlockFile", "slots_in"]

log = logging.getLogger(__name__)

_MAGIC = b"LEGATOKV"
_HEADER_SIZE = 4096
_CRC = struct.Struct("<I")


def slots_in(size: int, block_bytes: Sequence[int], label_bytes: int) -> int:
    """How many blocks of each group a file of `size` bytes holds."""
    return max(0, size - _HEADER_SIZE) // sum(_CRC.size + label_bytes + bytes for bytes in block_bytes)


class BlockFile:
    """`num_slots` blocks of each group. One process has a file at a time; every method may raise OSError."""

    def __init__(
        self, path: Path, identity: Mapping[str, object], block_bytes: Sequence[int], label_bytes: int, size: int
    ) -> None:
        """Opens the file, or makes it anew where it is not exactly as asked: then the log says why.

        identity: what the blocks belong to, as JSON. block_bytes: per group. size: bytes that the file may have.
        OSError where it cannot be had: another process has it, or the disk is full.
        """
        self._record_bytes = _CRC.size + label_bytes
        self.num_slots = slots_in(size, block_bytes, label_bytes)
        self._block_bytes = tuple(block_bytes)
        records = self.num_slots * self._record_bytes * len(self._block_bytes)
        sizes = (self.num_slots * bytes for bytes in self._block_bytes)
        *self._groups_at, self._size = accumulate(sizes, initial=_HEADER_SIZE + records)
        document = json.dumps({**identity, "slots": self.num_slots, "blocks": self._block_bytes}, sort_keys=True)
        self._header = (_MAGIC + document.encode()).ljust(_HEADER_SIZE, b"\0")
        if len(self._header) > _HEADER_SIZE:
            raise ValueError("the identity of a block file is too long")
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # it holds what users wrote
        try:
            self._lock()
            self._make_usable()
        except BaseException:
            os.close(self._file)
            raise

    def labels(self) -> Iterator[tuple[int, int, bytes]]:
        """Group, slot and label of every slot that is not empty. Whether the block is whole shows when it is read."""
        size = self._record_bytes
        for group in range(len(self._block_bytes)):
            records = self._read(self._record_at(group, 0), self.num_slots * size)
            for slot in range(self.num_slots):
                label = records[slot * size + _CRC.size : (slot + 1) * size]
                if any(label):
                    yield group, slot, label

    def write(self, group: int, slot: int, label: bytes, block: bytes) -> None:
        self._write(self._block_at(group, slot), block)
        self._write(self._record_at(group, slot), _CRC.pack(zlib.crc32(block, zlib.crc32(label))) + label)

    def read(self, group: int, slot: int, label: bytes) -> bytes | None:
        """The block that was written under this label; None where the slot holds another, or a damaged one."""
        record = self._read(self._record_at(group, slot), self._record_bytes)
        if record[_CRC.size :] != label:
            return None
        block = self._read(self._block_at(group, slot), self._block_bytes[group])
        return block if _CRC.pack(zlib.crc32(block, zlib.crc32(label))) == record[: _CRC.size] else None

    def close(self) -> None:
        os.close(self._file)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(errno.EAGAIN, "another process uses it", str(self._path)) from None

    def _make_usable(self) -> None:
        found = os.fstat(self._file).st_size
        fault = None
        if found and os.pread(self._file, _HEADER_SIZE, 0) != self._header:
            fault = "is no file of this engine's blocks in this size"
        elif found not in (0, self._size):
            fault = f"has {found} bytes instead of {self._size}"
        if fault is not None:
            log.warning("%s %s: it is made anew", self._path, fault)
        if fault is not None or not found:
            os.ftruncate(self._file, 0)
            self._need_space()
            os.ftruncate(self._file, self._size)
            self._write(0, self._header)

    def _need_space(self) -> None:
        disk = os.fstatvfs(self._file)
        free = disk.f_bavail * disk.f_frsize
        if free < self._size:
            told = f"no space left on the disk: {free >> 20:,} MiB are free, {self._size >> 20:,} MiB are asked for"
            raise OSError(errno.ENOSPC, told, str(self._path))

    def _record_at(self, group: int, slot: int) -> int:
        return _HEADER_SIZE + (group * self.num_slots + slot) * self._record_bytes

    def _block_at(self, group: int, slot: int) -> int:
        return self._groups_at[group] + slot * self._block_bytes[group]

    def _read(self, at: int, size: int) -> bytes:
        parts = []
        while size > 0:
            part = os.pread(self._file, size, at)
            if not part:
                raise OSError(errno.EIO, "the file was cut short", str(self._path))
            parts.append(part)
            at, size = at + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _write(self, at: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            done = os.pwrite(self._file, rest, at)
            at, rest = at + done, rest[done:]
