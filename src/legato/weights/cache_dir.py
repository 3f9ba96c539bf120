"""The cache folder: what is in it, what is in use, what may go.

    models/NAME/    a model file that Legato unpacked itself, and its stamp
    hub/NAME/       a Hugging Face repository, in huggingface_hub's own layout
    engines/NAME    built engine files
    kv/NAME         evicted KV blocks of one engine file (--kv-offloading-size)

An entry is a file or folder directly below one of these. Whoever fills or uses an entry holds it (a shared flock,
which the kernel drops when the process dies); `prune` removes only what it can lock alone.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from legato.core.errors import ConfigError

__all__ = [
    "ENGINES",
    "HUB",
    "KV",
    "MODELS",
    "CacheEntry",
    "Hold",
    "default_cache_dir",
    "delete",
    "list_cache",
    "prune",
    "sync_folder",
]

MODELS, HUB, ENGINES, KV = "models", "hub", "engines", "kv"
_KINDS = (MODELS, HUB, ENGINES, KV)
_TRASH = ".trash-"


def default_cache_dir() -> Path:
    """$LEGATO_CACHE or ~/.cache/legato. ConfigError where there is no home directory."""
    if chosen := os.environ.get("LEGATO_CACHE"):
        return Path(chosen).absolute()
    try:
        return Path.home() / ".cache" / "legato"
    except RuntimeError as error:
        raise ConfigError("no home directory for the cache: set LEGATO_CACHE or --cache-dir") from error


class Hold:
    """Keeps a cache entry from being pruned until `close`, and notes that it was used now."""

    def __init__(self, path: Path) -> None:
        """FileNotFoundError if there is no such entry (any more)."""
        while True:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                current = os.path.samestat(os.fstat(descriptor), path.stat())
            except BaseException:
                os.close(descriptor)
                raise
            if current:  # else it was pruned and made again between open and flock
                break
            os.close(descriptor)
        self._descriptor: int | None = descriptor
        with contextlib.suppress(OSError):  # a cache on a read-only disk is fine, only its age is not known
            os.utime(path)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """kind: models | hub | engines | kv. bytes on disk, symbolic links not followed. last_used: seconds since 1970."""

    kind: str
    name: str
    path: Path
    bytes: int
    last_used: float


def list_cache(cache_dir: Path) -> list[CacheEntry]:
    """All entries, ordered by kind and name."""
    entries = []
    for kind in _KINDS:
        folder = cache_dir / kind
        for path in sorted(folder.glob("models--*" if kind == HUB else "[!.]*")):
            name = path.name.removeprefix("models--").replace("--", "/") if kind == HUB else path.name
            entries.append(CacheEntry(kind, name, path, _size(path), path.lstat().st_mtime))
    return entries


def prune(
    cache_dir: Path, *, older_than_days: float | None = None, all: bool = False, dry_run: bool = False
) -> list[CacheEntry]:
    """Removes entries (all, or those not used for some days) that nobody holds; returns them.

    With `dry_run` they are only returned. ConfigError if it is not said what to remove, or it cannot be removed.
    """
    if not all and older_than_days is None:
        raise ConfigError("cache prune: say how old entries must be, or all")
    oldest = time.time() - 86400 * older_than_days if older_than_days is not None else None
    try:
        removed = [
            entry
            for entry in list_cache(cache_dir)
            if (oldest is None or entry.last_used < oldest) and _remove(entry.path, dry_run=dry_run)
        ]
        if not dry_run:
            _empty_trash(cache_dir)
    except OSError as error:
        raise ConfigError(f"cache prune: {error.filename}: {error.strerror}") from error
    return removed


def _remove(path: Path, *, dry_run: bool) -> bool:
    """Whether `path` was free, and so is gone now. Renamed first: a removal that is cut short leaves no half entry."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), path.stat()):
            return False  # removed and made again meanwhile: what is there now is new
        if not dry_run:
            trash = path.with_name(f"{_TRASH}{os.getpid()}-{path.name}")
            path.rename(trash)
            delete(trash)
    except (BlockingIOError, FileNotFoundError):
        return False
    finally:
        os.close(descriptor)
    return True


def _empty_trash(cache_dir: Path) -> None:
    """Removes what a killed `prune` has left."""
    for kind in _KINDS:
        for path in (cache_dir / kind).glob(f"{_TRASH}*"):
            delete(path)


def delete(path: Path) -> None:
    """A file, a link, or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder, after a rename say, are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    paths = [path, *path.rglob("*")] if path.is_dir() else [path]
    return sum(status.st_size for p in paths if stat.S_ISREG((status := p.lstat()).st_mode))
