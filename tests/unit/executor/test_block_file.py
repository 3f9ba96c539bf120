"""The file of evicted blocks: what is read is what was written, and nothing else is ever read."""

import errno
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.core.config import CacheConfig
from legato.core.errors import ConfigError
from legato.core.types import DEVICE_TIER, HOST_TIER, BlockCopy
from legato.executor.block_file import BlockFile
from legato.executor.disk_tier import DiskTier

BLOCKS = (100, 60)
LABEL = 8
SIZE = 4096 + 5 * (100 + 60 + 2 * (LABEL + 4))
WHOSE = {"engine": "e", "isa": "i"}


def opened(path: Path, *, size: int = SIZE, **whose: str) -> BlockFile:
    return BlockFile(path, {**WHOSE, **whose}, BLOCKS, LABEL, size)


def label(number: int) -> bytes:
    return number.to_bytes(LABEL, "little")


def block(group: int, number: int) -> bytes:
    return bytes([number]) * BLOCKS[group]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed file with three blocks."""
    path = tmp_path / "deep" / "blocks.kv"
    file = opened(path)
    for group, slot in ((0, 0), (0, 4), (1, 2)):
        file.write(group, slot, label(slot + 1), block(group, slot))
    file.close()
    return path


def test_what_was_written_is_there_after_a_restart(path: Path) -> None:
    file = opened(path)
    assert file.num_slots == 5
    assert list(file.labels()) == [(0, 0, label(1)), (0, 4, label(5)), (1, 2, label(3))]
    assert file.read(0, 4, label(5)) == block(0, 4)
    assert file.read(1, 2, label(3)) == block(1, 2)
    assert file.read(0, 4, label(6)) is None
    assert file.read(0, 1, label(1)) is None
    file.close()


def test_only_the_owner_may_read_it(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size == SIZE


@pytest.mark.parametrize("whose", [{"engine": "other"}, {"isa": "avx2"}, {"kv_cache_dtype": "fp8"}], ids=str)
def test_another_engines_file_is_made_anew(path: Path, whose: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    file = opened(path, **whose)
    assert list(file.labels()) == []
    assert file.read(0, 0, label(1)) is None
    assert "is no file of this engine's blocks in this size: it is made anew" in caplog.text
    file.close()


def test_another_size_is_made_anew(path: Path) -> None:
    file = opened(path, size=2 * SIZE)
    assert (file.num_slots, list(file.labels())) == ((2 * SIZE - 4096) // 184, [])
    file.close()


@pytest.mark.parametrize("length", [1, 4095, 4096, SIZE - 1, SIZE + 1])
def test_a_file_of_another_length_is_made_anew(path: Path, length: int, caplog: pytest.LogCaptureFixture) -> None:
    os.truncate(path, length)
    file = opened(path)
    assert list(file.labels()) == []
    assert "made anew" in caplog.text
    assert path.stat().st_size == SIZE
    file.close()


def test_a_file_cut_short_while_it_is_used_is_an_error(path: Path) -> None:
    file = opened(path)
    os.truncate(path, 4200)
    with pytest.raises(OSError, match="cut short"):
        file.read(1, 2, label(3))
    file.close()


@settings(max_examples=60, deadline=None)
@given(at=st.integers(4096, SIZE - 1), flip=st.integers(1, 255))
def test_whatever_byte_is_damaged_nothing_wrong_is_read(tmp_path_factory: Any, at: int, flip: int) -> None:
    path = tmp_path_factory.mktemp("damaged") / "blocks.kv"
    file = opened(path)
    written = [(group, slot, label(9 + slot), block(group, slot)) for group in (0, 1) for slot in range(5)]
    for each in written:
        file.write(*each)
    file.close()
    with path.open("r+b") as raw:
        raw.seek(at)
        byte = raw.read(1)[0]
        raw.seek(at)
        raw.write(bytes([byte ^ flip]))
    file = opened(path)
    read = [file.read(group, slot, name) for group, slot, name, _ in written]
    assert [found for found in read if found is not None] == [
        data for found, (_, _, _, data) in zip(read, written, strict=True) if found is not None
    ]
    assert read.count(None) <= 1
    file.close()


def test_a_file_in_use_is_left_alone(path: Path) -> None:
    first = opened(path)
    with pytest.raises(BlockingIOError, match="another process uses it"):
        opened(path)
    assert first.read(0, 0, label(1)) == block(0, 0)
    first.close()


class Pool:
    """Blocks of one group in memory."""

    def __init__(self) -> None:
        self.blocks = {index: block(0, 10 + index) for index in range(4)}

    def read_block(self, group: int, index: int) -> bytes:
        return self.blocks[index]

    def write_block(self, group: int, index: int, data: bytes) -> None:
        self.blocks[index] = data


def tier(folder: Path, gib: float = 1e-4) -> DiskTier | None:
    return DiskTier.open(CacheConfig(kv_offloading_size=gib), folder, WHOSE, BLOCKS[:1])


NAME = b"n" * 128
SPILL = BlockCopy(0, DEVICE_TIER, 1, HOST_TIER, 3, NAME)
RESTORE = BlockCopy(0, HOST_TIER, 3, DEVICE_TIER, 2, NAME)


def test_copies_are_done_in_order(tmp_path: Path) -> None:
    disk, pool = tier(tmp_path), Pool()
    assert disk is not None
    assert disk.copy([SPILL, BlockCopy(0, DEVICE_TIER, 0, DEVICE_TIER, 1), RESTORE], pool) == ()
    assert [pool.blocks[index][0] for index in range(4)] == [10, 10, 11, 13]
    disk.close()
    again = tier(tmp_path)
    assert again is not None
    pool.blocks[2] = b""
    assert again.copy([RESTORE], pool) == ()
    assert pool.blocks[2] == block(0, 11)
    again.close()


def test_a_copy_of_what_is_not_there_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk, pool = tier(tmp_path), Pool()
    assert disk is not None
    other = BlockCopy(0, HOST_TIER, 3, DEVICE_TIER, 2, b"m" * 128)
    assert disk.copy([SPILL, other, RESTORE], pool) == (1,)
    assert "1 KV blocks on disk cannot be read or are damaged: they are computed again" in caplog.text
    disk.close()


def test_a_full_disk_is_said_once_and_ends_storing_but_not_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk, pool = tier(tmp_path), Pool()
    assert disk is not None

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert disk.copy([SPILL], pool) == ()
    other = replace(SPILL, source=0, target=4, label=b"o" * 128)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        assert disk.copy([other], pool) == (0,)
    assert disk.copy([other, replace(RESTORE, source=4, label=other.label), RESTORE], pool) == (0, 1)
    assert pool.blocks[2] == block(0, 11)
    said = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.message for record in said] == [
        "evicted KV blocks are dropped from now on: cannot write them: No space left on device"
    ]
    disk.close()


def test_a_tier_that_cannot_be_had_is_said_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert tier(tmp_path, gib=0) is None
    assert not caplog.records
    assert tier(tmp_path, gib=1e9) is None
    assert "no space left on the disk" in caplog.text
    first = tier(tmp_path)
    assert first is not None
    assert tier(tmp_path) is None
    assert "another process uses it" in caplog.text
    first.close()
    (tmp_path / "file").write_text("")
    assert tier(tmp_path / "file") is None


def test_a_size_below_one_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="kv_offloading_size: one block takes"):
        tier(tmp_path, gib=1e-7)


WRITER = """
import sys
from pathlib import Path
from legato.executor.block_file import BlockFile
file = BlockFile(Path(sys.argv[1]), {}, (1 << 16,), 8, 1 << 20)
number = 0
while True:
    number += 1
    file.write(0, number % file.num_slots, number.to_bytes(8, "little"), bytes([number % 251]) * (1 << 16))
    if number == 50:
        print("on the way", flush=True)
"""


def test_a_writer_that_is_killed_leaves_nothing_wrong_behind(tmp_path: Path) -> None:
    path = tmp_path / "killed.kv"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"on the way\n"
        writer.kill()
    file = BlockFile(path, {}, (1 << 16,), 8, 1 << 20)
    whole = 0
    for group, slot, name in file.labels():
        read = file.read(group, slot, name)
        if read is not None:
            assert read == bytes([int.from_bytes(name, "little") % 251]) * (1 << 16)
            whole += 1
    assert whole >= file.num_slots - 1
    file.close()


def test_a_size_without_a_block_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    disk, pool = tier(tmp_path), Pool()
    assert disk is not None
    assert disk.copy([SPILL], pool) == ()
    disk.close()
    with pytest.raises(ConfigError, match="kv_offloading_size: one block takes"):
        tier(tmp_path, gib=1e-9)
    again = tier(tmp_path)
    assert again is not None, "no other has the file"
    assert again.copy([RESTORE], pool) == ()
    again.close()
