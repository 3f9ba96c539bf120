"""The host tier as a file: does the block copies of a plan between an executor's pool and the disk."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import legato
from legato.cache.host_tier import label_size
from legato.core.config import CacheConfig
from legato.core.errors import ConfigError
from legato.core.types import DEVICE_TIER, HOST_TIER, BlockCopy, ExecutorInfo
from legato.executor.block_file import BlockFile, slots_in

__all__ = ["BlockPoolBytes", "DiskTier"]

log = logging.getLogger(__name__)


class BlockPoolBytes(Protocol):
    """A pool whose blocks can be read and replaced as bytes, between steps."""

    def read_block(self, group: int, index: int) -> bytes: ...
    def write_block(self, group: int, index: int, data: bytes) -> None: ...


class DiskTier:
    """Blocks on disk. A copy that fails is reported, and the step goes on without it.

    After a write that failed nothing more is written, for a full disk would be asked at each eviction; reads go on.
    """

    def __init__(self, file: BlockFile) -> None:
        self._file = file
        self._writes = True

    @classmethod
    def open(
        cls, cache: CacheConfig, folder: Path | None, identity: Mapping[str, str], block_bytes: Sequence[int]
    ) -> "DiskTier | None":
        """The tier that the configuration asks for. None where it asks for none, or it cannot be had: the log says why.

        identity: all that the bits of a block depend on, beside this version of Legato. ConfigError for a size that
        holds no block.
        """
        if not cache.kv_offloading_size or folder is None:
            return None
        whose = {"legato": legato.__version__, "block_size": str(cache.block_size), **identity}
        name = hashlib.sha256(repr(sorted(whose.items())).encode()).hexdigest()[:32]
        size = int(cache.kv_offloading_size * (1 << 30))
        path = folder / f"{name}.kv"
        label_bytes = label_size(cache.block_size)
        if not slots_in(size, block_bytes, label_bytes):  # before a file that is there would be made anew
            raise ConfigError(f"kv_offloading_size: one block takes {sum(block_bytes) / (1 << 30):.6f} GiB")
        try:
            return cls(BlockFile(path, whose, block_bytes, label_bytes, size))
        except OSError as error:
            log.warning("evicted KV blocks are dropped: %s: %s", path, error.strerror)
            return None

    def told_by(self, info: ExecutorInfo) -> ExecutorInfo:
        """What an executor with this tier says of itself."""
        return replace(info, host_slots=self._file.num_slots, host_blocks=tuple(self._file.labels()))

    def copy(self, copies: Sequence[BlockCopy], pool: BlockPoolBytes) -> tuple[int, ...]:
        """Does the copies in order. Returns the indices of those that could not be made."""
        lost = tuple(index for index, copy in enumerate(copies) if not self._copied(copy, pool))
        if damaged := sum(copies[index].source_tier == HOST_TIER for index in lost):
            log.warning("%d KV blocks on disk cannot be read or are damaged: they are computed again", damaged)
        return lost

    def close(self) -> None:
        self._file.close()

    def _copied(self, copy: BlockCopy, pool: BlockPoolBytes) -> bool:
        if copy.source_tier == copy.target_tier == DEVICE_TIER:
            pool.write_block(copy.group, copy.target, pool.read_block(copy.group, copy.source))
            return True
        return self._stored(copy, pool) if copy.target_tier == HOST_TIER else self._restored(copy, pool)

    def _stored(self, copy: BlockCopy, pool: BlockPoolBytes) -> bool:
        if not self._writes:
            return False
        try:
            self._file.write(copy.group, copy.target, copy.label, pool.read_block(copy.group, copy.source))
        except OSError as error:
            self._writes = False
            log.error("evicted KV blocks are dropped from now on: cannot write them: %s", error.strerror)
        return self._writes

    def _restored(self, copy: BlockCopy, pool: BlockPoolBytes) -> bool:
        try:
            block = self._file.read(copy.group, copy.source, copy.label)
        except OSError:
            return False
        if block is None:
            return False
        pool.write_block(copy.group, copy.target, block)
        return True
