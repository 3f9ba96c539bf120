"""From what the user typed to an engine file: built on first use, then found in the cache."""

import contextlib
import hashlib
import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from filelock import FileLock

from legato import __version__
from legato.build.engine_file import VERSION, EngineFile
from legato.core.config import ModelConfig
from legato.core.errors import CheckpointError, ConfigError
from legato.quant.formats import FORMATS
from legato.weights.cache_dir import ENGINES, Hold, default_cache_dir
from legato.weights.open import Checkpoint, open_checkpoint
from legato.weights.source import Progress

__all__ = ["build_engine", "ensure_engine"]


def ensure_engine(model: ModelConfig, progress: Progress | None = None, *, threads: int = 1) -> EngineFile:
    """The engine file of a model; builds it, on `threads` threads, where the cache has none that fits.

    Two processes that want the same file build it once. A damaged file is built again. CheckpointError and ConfigError
    name what is wrong with the model or the request.
    """
    cache_dir = Path(model.cache_dir).expanduser() if model.cache_dir else default_cache_dir()
    with open_checkpoint(model.model, revision=model.revision, cache_dir=cache_dir, progress=progress) as checkpoint:
        folder = cache_dir / ENGINES
        path = folder / f"{checkpoint.name}-{model.format}-{_key(model, checkpoint)}.legato"
        if (file := _usable(path)) is not None:
            Hold(path).close()  # notes that it was used now
            return file
        with _locked(path):
            if (file := _usable(path)) is not None:
                return file
            _remove_leftovers(path)
            build_engine(model, checkpoint, path, progress, threads=threads)
            return EngineFile.open(path)


def _locked(path: Path) -> AbstractContextManager[object]:
    """The right to build the engine file at `path`. ConfigError where nothing can be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path.with_name(f".{path.name}.lock")).acquire()
    except OSError as error:
        raise ConfigError(f"cannot write to the cache folder {path.parent}: {error.strerror}") from error


def build_engine(
    model: ModelConfig, checkpoint: Checkpoint, path: Path, progress: Progress | None = None, *, threads: int = 1
) -> None:
    """Lowers, packs and writes the engine file of an open checkpoint to `path`.

    The compiler (model families, lowering, packing) is loaded only now: a start from the cache does without it.
    """
    compiler = importlib.import_module("legato.build.compile")
    compiler.compile_engine(model, checkpoint, path, progress, threads)


def _key(model: ModelConfig, checkpoint: Checkpoint) -> str:
    """Changes with everything that the file's content depends on."""
    parts = [str(VERSION), __version__, checkpoint.fingerprint, model.format, str(model.max_model_len)]
    parts.append(repr(FORMATS.get(model.format)))  # what the name stands for
    for override in (model.tokenizer, model.chat_template):
        parts.extend(_contents(override))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _contents(override: str | None) -> Iterator[str]:
    """Hashes of the files that an override names."""
    if override is None:
        yield ""
        return
    path = Path(override).expanduser()
    for file in sorted(path.glob("*.j*")) if path.is_dir() else [path]:
        if file.is_file():
            yield file.name + hashlib.sha256(file.read_bytes()).hexdigest()


def _usable(path: Path) -> EngineFile | None:
    """The engine file at `path`. One that is damaged is as good as none."""
    if not path.exists():
        return None
    try:
        return EngineFile.open(path)
    except CheckpointError:
        return None


def _remove_leftovers(path: Path) -> None:
    """Removes what a killed build has left; the caller holds the lock."""
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            leftover.unlink()
