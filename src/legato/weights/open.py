"""From what the user typed to an open checkpoint."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from legato.core.errors import CheckpointError
from legato.weights.cache_dir import Hold
from legato.weights.default_model import DEFAULT_MODEL, fetch_packaged
from legato.weights.folder import PICKLED, PICKLED_HINT, FolderSource
from legato.weights.gguf_source import GgufSource
from legato.weights.hub import fetch_from_hub, is_hub_id
from legato.weights.source import Progress, TensorSource

__all__ = ["Checkpoint", "open_checkpoint"]

_HASHED_HEAD = 1 << 20


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An open checkpoint. Either `folder` or `gguf_metadata` says where the tokenizer is.

    `fingerprint` changes when a file that the engine is built from changes; it does not depend on where they lie.
    """

    source: TensorSource
    name: str
    fingerprint: str
    folder: Path | None
    gguf_metadata: Mapping[str, Any] | None
    hold: Hold | None = None  # on the entry of our cache that the checkpoint lies in

    def close(self) -> None:
        self.source.close()
        if self.hold:
            self.hold.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_checkpoint(
    model: str, *, revision: str | None, cache_dir: Path, progress: Progress | None = None
) -> Checkpoint:
    """Opens the default model (""), a folder, a .gguf file or a Hugging Face id, in this order.

    Downloads what is not in the cache. Raises CheckpointError with one line that names the file at fault.
    """
    try:
        return _open(model, revision, cache_dir, progress)
    except OSError as error:
        raise CheckpointError(f"{error.filename or model}: {error.strerror or error}") from error


def _open(model: str, revision: str | None, cache_dir: Path, progress: Progress | None) -> Checkpoint:
    path = Path(model)
    if model and path.exists():
        if revision is not None:
            raise CheckpointError(f"{model}: a revision ({revision}) is only for Hugging Face ids, and this is a path")
        return _open_path(path)
    if model and is_hub_id(model):
        folder, hold = fetch_from_hub(model, revision, cache_dir)
        return _open_held(folder, hold, model.rpartition("/")[2])
    if model:
        raise CheckpointError(f"{model}: no such file or folder, and not a Hugging Face id (ORG/NAME)")
    if revision is not None:
        raise CheckpointError(f"a revision ({revision}) is only for Hugging Face ids, and no model is named")
    file, hold = fetch_packaged(DEFAULT_MODEL, cache_dir, progress=progress)
    return _open_held(file, hold, DEFAULT_MODEL.name, fingerprint=DEFAULT_MODEL.sha256)


def _open_held(path: Path, hold: Hold, name: str, fingerprint: str | None = None) -> Checkpoint:
    try:
        return _open_path(path, name, fingerprint, hold)
    except BaseException:
        hold.close()
        raise


def _open_path(
    path: Path, name: str | None = None, fingerprint: str | None = None, hold: Hold | None = None
) -> Checkpoint:
    if path.is_dir():
        source = FolderSource(path)
        texts = [p for p in path.iterdir() if p.suffix in (".json", ".jinja") and p.is_file()]
        mark = _fingerprint(texts, source.weight_files)
        return Checkpoint(source, name or path.resolve().name, mark, path, None, hold)
    if path.suffix.lower() == ".gguf":
        gguf = GgufSource(path)
        return Checkpoint(gguf, name or path.stem, fingerprint or _fingerprint([], [path]), None, gguf.metadata, hold)
    if path.suffix.lower() in PICKLED:
        raise CheckpointError(f"{path}: {PICKLED_HINT}")
    hint = "; name the folder that it is in" if path.suffix.lower() == ".safetensors" else ""
    raise CheckpointError(f"{path}: not a folder or a .gguf file{hint}")


def _fingerprint(texts: Iterable[Path], weights: Iterable[Path]) -> str:
    """SHA-256 over names and contents of small files; of weight files: name, size, time and the first MiB."""
    digest = hashlib.sha256()
    for path in sorted(texts):
        digest.update(f"{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    for path in sorted(weights):
        status = path.stat()
        digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        with path.open("rb") as file:
            digest.update(hashlib.sha256(file.read(_HASHED_HEAD)).digest())
    return digest.hexdigest()
