"""Engine files in the cache: built once, found again, keyed by all they depend on, mended."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from legato.build import compile, engine
from legato.build.engine import ensure_engine
from legato.build.engine_file import EngineFile
from legato.core.config import ModelConfig
from legato.core.errors import CheckpointError, ConfigError
from legato.engine import start
from legato.quant.formats import FORMATS
from support.tiny_checkpoints import tensors, write_folder
from support.tiny_tokenizers import tiny_assets


@pytest.fixture
def model(tmp_path: Path) -> ModelConfig:
    folder = write_folder(tmp_path / "small", "llama", tensors("llama"))
    (folder / "tokenizer.json").write_text(tiny_assets().tokenizer_json, encoding="utf-8")
    return ModelConfig(model=str(folder), cache_dir=str(tmp_path / "cache"))


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Paths that were built; each build takes a while."""
    made: list[Path] = []
    build = engine.build_engine

    def count(model: ModelConfig, checkpoint: Any, path: Path, progress: Any, *, threads: int) -> None:
        made.append(path)
        build(model, checkpoint, path, progress, threads=threads)

    monkeypatch.setattr(engine, "build_engine", count)
    return made


def test_an_engine_is_built_once(model: ModelConfig, builds: list[Path]) -> None:
    said: list[tuple[str, int, int]] = []
    path = ensure_engine(model, progress=lambda *what: said.append(what)).path
    assert path.parent == Path(model.cache_dir or "") / "engines"
    assert path.name.startswith("small-auto-")
    assert said[-1][1] == said[-1][2] > 0
    os.utime(path, (0, 0))
    assert ensure_engine(model).path == path
    assert builds == [path]
    assert time.time() - path.stat().st_mtime < 60  # used now, says its age
    file = EngineFile.open(path)
    file.verify()
    assert (file.meta["model"], file.meta["format"]) == ("small", "auto")
    assert file.text_assets.tokenizer_json


def test_a_build_takes_no_more_threads_than_the_machine_allows(
    model: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []
    pack = compile.pack_tensors

    def count(*args: Any, threads: int, **options: Any) -> Any:
        used.append(threads)
        return pack(*args, threads=threads, **options)

    monkeypatch.setattr(compile, "pack_tensors", count)
    monkeypatch.setattr(start, "default_threads", lambda: 3)
    start.engine_file(model)
    start.build_file(model, tmp_path / "out")
    assert used == [3, 3]


def changed_template(model: ModelConfig, folder: Path) -> ModelConfig:
    (folder / "t.jinja").write_text("{{ messages }}", encoding="utf-8")
    return replace(model, chat_template=str(folder / "t.jinja"))


def changed_tokenizer(model: ModelConfig, folder: Path) -> ModelConfig:
    (folder / "other").mkdir()
    shutil.copy(Path(model.model) / "tokenizer.json", folder / "other")
    return replace(model, tokenizer=str(folder / "other" / "tokenizer.json"))


def changed_checkpoint(model: ModelConfig, folder: Path) -> ModelConfig:
    write_folder(Path(model.model), "llama", tensors("llama", seed=1))
    return model


@pytest.mark.parametrize(
    "change",
    [
        lambda model, folder: replace(model, format="int8"),
        lambda model, folder: replace(model, max_model_len=100),
        changed_template,
        changed_tokenizer,
        changed_checkpoint,
    ],
)
def test_whatever_matters_is_in_the_key(
    model: ModelConfig, tmp_path: Path, change: Callable[[ModelConfig, Path], ModelConfig]
) -> None:
    first = ensure_engine(model).path
    assert ensure_engine(change(model, tmp_path)).path != first


def test_what_a_format_stands_for_is_in_the_key(model: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of int4 as it was is no int4 of today."""
    int4 = replace(model, format="int4")
    first = ensure_engine(int4).path
    monkeypatch.setitem(engine.FORMATS, "int4", replace(FORMATS["int4"], bits=5))
    assert ensure_engine(int4).path != first


def test_overrides_are_in_the_file(model: ModelConfig, tmp_path: Path) -> None:
    file = ensure_engine(replace(changed_template(model, tmp_path), max_model_len=77))
    assert file.text_assets.chat_template == "{{ messages }}"
    assert file.plan.max_position == 77
    with pytest.raises(ConfigError, match=r"chat_template: cannot read .*none\.jinja"):
        ensure_engine(replace(model, chat_template=str(tmp_path / "none.jinja")))


@pytest.mark.parametrize("damage", [lambda raw: raw[:-64], lambda raw: b"", lambda raw: raw[:40] + b"?" + raw[41:]])
def test_a_damaged_engine_is_built_again(
    model: ModelConfig, builds: list[Path], damage: Callable[[bytes], bytes]
) -> None:
    path = ensure_engine(model).path
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert ensure_engine(model).path == path
    assert path.read_bytes() == whole
    assert builds == [path, path]


def test_leftovers_of_a_killed_build_go(model: ModelConfig) -> None:
    path = ensure_engine(model).path
    path.unlink()
    leftover = path.with_name(f".{path.name}.99.tmp")
    leftover.write_bytes(b"half")
    ensure_engine(model)
    assert not leftover.exists()
    assert not list(path.parent.glob("*.tmp"))


_KILLED_BUILD = """
import os, signal, sys
from legato.build.engine import ensure_engine
from legato.core.config import ModelConfig
ensure_engine(ModelConfig(model=sys.argv[1], cache_dir=sys.argv[2]), lambda *_: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_a_build_that_is_killed_is_done_again(model: ModelConfig) -> None:
    engines = Path(model.cache_dir or "") / "engines"
    command = (sys.executable, "-c", _KILLED_BUILD, model.model, model.cache_dir or "")
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    assert [path.suffix for path in engines.glob("*legato*") if not path.name.endswith(".lock")] == [".tmp"]
    path = ensure_engine(model).path
    EngineFile.open(path).verify()
    assert not list(engines.glob(".*.tmp"))


def test_builders_of_one_file_wait_for_each_other(model: ModelConfig, builds: list[Path]) -> None:
    with ThreadPoolExecutor(4) as pool:
        files = list(pool.map(ensure_engine, [model] * 4))
    assert [*{file.path for file in files}] == builds


def test_a_cache_folder_that_cannot_be_made_is_named(model: ModelConfig, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot write to the cache folder .*/file/engines"):
        ensure_engine(replace(model, cache_dir=str(tmp_path / "file")))


@pytest.mark.parametrize(
    ("name", "format"), [("model.norm.weight", "auto"), ("model.layers.0.mlp.up_proj.weight", "int8")]
)
def test_weights_that_are_no_numbers_are_named(model: ModelConfig, name: str, format: str) -> None:
    values = tensors("llama")
    values[name] = np.full_like(values[name], np.nan)
    write_folder(Path(model.model), "llama", values)
    with pytest.raises(CheckpointError, match=rf"cannot pack .*{name}.* as"):
        ensure_engine(replace(model, format=format))
    assert not list((Path(model.cache_dir or "") / "engines").glob("*.legato"))


def test_a_cache_that_cannot_be_written_is_named(model: ModelConfig) -> None:
    path = ensure_engine(model).path
    path.unlink()
    lock = path.with_name(f".{path.name}.lock")
    lock.unlink(missing_ok=True)
    lock.mkdir()  # as good as a read-only disk, also for root
    with pytest.raises(ConfigError, match=r"cannot write to the cache folder .*engines"):
        ensure_engine(model)
