"""The engine file: both readers, damage, hostile records, interrupted and concurrent writers."""

import errno
import os
import random
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuzz.engine_file import make, outcome, seed_file, sign
from fuzz.fuzzer import CORPUS
from legato import _native
from legato.build import engine_file
from legato.build.dump import from_json, to_json
from legato.build.encode import encode_plan
from legato.build.engine_file import EngineFile, Section, TensorRecord, write_engine
from legato.build.lower import lower
from legato.build.pack import pack_tensors
from legato.core.errors import CheckpointError, ConfigError
from legato.models import find
from support.tiny_engines import META, tiny_engine
from support.tiny_models import tiny_config, tiny_source

SECTION_TABLE = 64
RECORD = struct.calcsize("<10I3Q32s")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_engine(tmp_path_factory.mktemp("engine") / "tiny.legato", dtype=lambda name: "Q4_1")


@pytest.fixture(scope="module")
def small() -> bytes:
    return seed_file()


def section(data: bytes, kind: Section) -> tuple[int, int]:
    """Offset and size."""
    offset, size = struct.unpack_from("<QQ", data, SECTION_TABLE + 64 * (kind - 1) + 8)
    return int(offset), int(size)


def test_a_file_comes_back_as_it_was_written(engine: Path) -> None:
    source = tiny_source(tiny_config("llama"), dtype=lambda name: "Q4_1")
    plan = lower(find(source.config, "config.json"), source)
    read = EngineFile.open(engine)
    assert read.plan == plan
    assert read.meta == META
    packed = list(pack_tensors(plan, source, threads=2))
    raw = engine.read_bytes()
    for (record, data), found in zip(packed, read.tensors, strict=True):
        assert replace(found, offset=0, sha256=bytes(32)) == record
        assert found.offset % 64 == 0
        assert raw[found.offset : found.offset + found.size] == data.tobytes()
    read.verify()
    _native.EngineFile.check(raw)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "smollm3"])
def test_plans_survive_json(model_type: str) -> None:
    source = tiny_source(tiny_config(model_type))
    plan = lower(find(source.config, "config.json"), source)
    assert from_json(to_json(plan)) == plan


def test_unknown_parts_of_a_plan_are_refused() -> None:
    source = tiny_source(tiny_config("llama"))
    plan = lower(find(source.config, "config.json"), source)
    with pytest.raises(ConfigError, match="no cache of kind 'latent'"):
        encode_plan(replace(plan, groups=(replace(plan.groups[0], kind="latent"),)))
    buffers = (replace(plan.buffers[0], format="fp8"), *plan.buffers[1:])
    with pytest.raises(ConfigError, match="no activation format 'fp8'"):
        encode_plan(replace(plan, buffers=buffers))
    tensors = (*plan.tensors[:-1], replace(plan.tensors[-1], views=("plus_one",)))
    with pytest.raises(ConfigError, match=f"cannot read '{tensors[-1].name}' stored as 'plus_one'"):
        encode_plan(replace(plan, tensors=tensors))
    with pytest.raises(ValueError, match="colour"):
        from_json({**to_json(plan), "colour": 1})


def test_a_damaged_tensor_is_found_by_verify(engine: Path, tmp_path: Path) -> None:
    read = EngineFile.open(engine)
    data = bytearray(engine.read_bytes())
    data[read.tensors[3].offset + 5] ^= 1
    broken = tmp_path / "broken.legato"
    broken.write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"broken\.legato: tensor '{read.plan.tensors[3].name}' is damaged"):
        EngineFile.open(broken).verify()


@pytest.mark.parametrize("kind", [Section.META, Section.PLAN, Section.TENSORS])
def test_a_damaged_section_is_found_at_open(kind: Section, small: bytes) -> None:
    data = bytearray(small)
    data[section(small, kind)[0] + 9] ^= 1
    python, native = outcome(bytes(data))
    assert f"section {kind.name} is damaged" in python
    assert ("is damaged" in native) == (kind is not Section.META)  # which the runtime does not read


@pytest.mark.parametrize("at", [0, 8, 12, 16, 24, 33, 70, 200])
def test_a_damaged_header_is_found_at_open(at: int, small: bytes) -> None:
    data = bytearray(small)
    data[at] ^= 1
    python, native = outcome(bytes(data))
    assert python
    assert native


@pytest.mark.parametrize("size", [0, 7, 63, 319, 320, -1])
def test_a_cut_file_is_refused(size: int, small: bytes) -> None:
    python, native = outcome(small[:size])
    assert "not a usable engine file" in python
    assert native


def test_files_that_are_none(tmp_path: Path) -> None:
    missing = tmp_path / "missing.legato"
    with pytest.raises(CheckpointError, match=r"missing\.legato"):
        EngineFile.open(missing)
    for path in (missing, tmp_path):
        with pytest.raises(_native.EngineFileError, match=path.name):
            _native.EngineFile.open(str(path))
    (tmp_path / "empty").touch()
    with pytest.raises(_native.EngineFileError, match="empty"):
        _native.EngineFile.open(str(tmp_path / "empty"))


# Field of the first tensor record (a table in this file), or of the first linear one, and a value it must not have.
HOSTILE_RECORDS = [
    ("kind", 3), ("type", 6), ("layout", 8), ("n", 0), ("k", 0), ("n", (1 << 32) - 1), ("n", 1 << 26), ("n_pad", 4096),
    ("k_pad", 1 << 30), ("group", 33), ("group", 128), ("zero", 16), ("has_min", 2), ("offset", 1 << 63), ("offset", 1),
    ("size", 1 << 63), ("size", 0), ("panel_bytes", 1), ("panel_bytes", 1 << 63),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), HOSTILE_RECORDS)
def test_hostile_tensor_records_are_refused(field: str, value: int, small: bytes) -> None:
    names = [name for name in TensorRecord.__slots__ if name != "sha256"]
    layout = struct.Struct("<10I3Q")
    begin, size = section(small, Section.TENSORS)
    linear = next(at for at in range(begin, begin + size, RECORD) if struct.unpack_from("<I", small, at)[0] == 0)
    data = bytearray(small)
    values = list(layout.unpack_from(data, linear))
    values[names.index(field)] = value
    layout.pack_into(data, linear, *values)
    sign(data)
    assert outcome(bytes(data))[1].startswith("TENSORS: ")


def test_every_word_of_the_plan_is_checked(small: bytes) -> None:
    """Whatever number stands in any place of the plan: accepted or one clear error, and never a wild access."""
    begin, size = section(small, Section.PLAN)
    refused = 0
    for at in range(begin, begin + size, 4):
        for value in (0x7FFFFFFF, 0x80000000, 5):
            data = bytearray(small)
            struct.pack_into("<I", data, at, value)
            sign(data)
            native = outcome(bytes(data))[1]
            assert native == "" or native.startswith("PLAN: ")
            refused += native != ""
    assert refused > size // 4


def test_the_corpus_and_fresh_variants_crash_nothing() -> None:
    rng = random.Random(7)
    kept = [path.read_bytes() for path in sorted((CORPUS / "engine_file").iterdir())]
    assert len(kept) >= 10
    for data in [*kept, *(make(rng) for _ in range(300))]:
        outcome(data)


def plan_and_meta() -> tuple[Any, dict[str, str], list[Any]]:
    source = tiny_source(tiny_config("llama"))
    plan = lower(find(source.config, "config.json"), source)
    return plan, META, list(pack_tensors(plan, source, threads=1))


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    plan, meta, tensors = plan_and_meta()

    def full() -> Any:
        yield tensors[0]
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ConfigError, match=r"cannot write the engine file .*tiny\.legato: no space left on the disk"):
        write_engine(tmp_path / "tiny.legato", plan, meta, full())
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, meta, tensors = plan_and_meta()
    path = tmp_path / "tiny.legato"
    write_engine(path, plan, meta, tensors)
    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_engine(path, plan, {**meta, "model": "other"}, tensors)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.legato"]


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = {paths!r}
from test_engine_file import plan_and_meta
from legato.build.engine_file import write_engine
plan, meta, tensors = plan_and_meta()
def die():
    yield from tensors[:-1]
    os.kill(os.getpid(), signal.SIGKILL)
write_engine(Path(sys.argv[1]), plan, meta, die())
"""


def test_a_killed_writer_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    path = tmp_path / "tiny.legato"
    tests = Path(__file__).parents[1]
    code = KILLED.format(paths=[str(tests), str(tests / "native"), *sys.path])
    killed = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert killed.returncode == -9
    assert not path.exists()
    assert len(list(tmp_path.iterdir())) == 1  # its temporary file, which the next build removes


def test_vectors_and_tables_keep_their_numbers(engine: Path) -> None:
    source = tiny_source(tiny_config("llama"), dtype=lambda name: "Q4_1")
    read = EngineFile.open(engine)
    raw = engine.read_bytes()
    for tensor, record in zip(read.plan.tensors, read.tensors, strict=True):
        data = raw[record.offset : record.offset + record.size]
        if tensor.kind == "vector":
            np.testing.assert_array_equal(np.frombuffer(data, "<f4")[: record.n], source.arrays[tensor.sources[0]])
        elif tensor.kind == "table":
            assert data == source.read(tensor.sources[0]).data.tobytes()


@pytest.mark.parametrize("meta", [{**META, "text": None}, {**META, "colour": "blue"}, {"model": "tiny"}])
def test_metadata_is_checked(meta: dict[str, Any], tmp_path: Path) -> None:
    plan, _, tensors = plan_and_meta()
    write_engine(tmp_path / "tiny.legato", plan, meta, tensors)
    with pytest.raises(CheckpointError, match=r"tiny\.legato: .*META must hold the texts fingerprint, format"):
        EngineFile.open(tmp_path / "tiny.legato")


def test_the_version_is_named(small: bytes) -> None:
    data = bytearray(small)
    struct.pack_into("<I", data, 8, engine_file.VERSION + 1)
    sign(data)
    for message in outcome(bytes(data)):
        assert f"version {engine_file.VERSION + 1}, this build reads {engine_file.VERSION}" in message
