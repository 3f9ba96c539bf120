"""What is in the cache folder, and what may be removed from it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from legato.core.errors import ConfigError
from legato.weights.cache_dir import Hold, default_cache_dir, list_cache, prune

DAY = 86400


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """One entry of each kind: 3, 5 and 7 bytes."""
    model = tmp_path / "models" / "tiny"
    hub = tmp_path / "hub" / "models--org--name"
    for folder in (model, hub / "blobs", hub / "snapshots" / "1", tmp_path / "engines", tmp_path / "hub" / ".locks"):
        folder.mkdir(parents=True)
    (model / "tiny.gguf").write_bytes(b"abc")
    (hub / "blobs" / "x").write_bytes(b"abcde")
    (hub / "snapshots" / "1" / "config.json").symlink_to("../../blobs/x")
    (tmp_path / "hub" / "version.txt").touch()
    (tmp_path / "engines" / "tiny.engine").write_bytes(b"abcdefg")
    (tmp_path / "engines" / ".part-1").touch()
    return tmp_path


def names(cache: Path) -> list[str]:
    return [entry.name for entry in list_cache(cache)]


def test_list(cache: Path) -> None:
    os.utime(cache / "models" / "tiny", (1000, 1000))
    assert [(e.kind, e.name, e.bytes) for e in list_cache(cache)] == [
        ("models", "tiny", 3),
        ("hub", "org/name", 5),
        ("engines", "tiny.engine", 7),
    ]
    assert list_cache(cache)[0].last_used == 1000
    assert list_cache(cache)[0].path == cache / "models" / "tiny"
    assert list_cache(cache / "absent") == []


def test_hold_notes_the_use(cache: Path) -> None:
    os.utime(cache / "models" / "tiny", (1000, 1000))
    Hold(cache / "models" / "tiny").close()
    assert list_cache(cache)[0].last_used > 1000


def test_prune_all(cache: Path) -> None:
    assert [e.name for e in prune(cache, all=True, dry_run=True)] == ["tiny", "org/name", "tiny.engine"]
    assert len(names(cache)) == 3
    assert [e.name for e in prune(cache, all=True)] == ["tiny", "org/name", "tiny.engine"]
    assert names(cache) == []
    assert list((cache / "models").iterdir()) == []
    assert (cache / "engines" / ".part-1").exists()


def test_prune_by_age(cache: Path) -> None:
    status = (cache / "engines" / "tiny.engine").stat()
    os.utime(cache / "engines" / "tiny.engine", (status.st_atime, status.st_mtime - 3 * DAY))
    assert prune(cache, older_than_days=4) == []
    assert [e.name for e in prune(cache, older_than_days=2)] == ["tiny.engine"]
    assert names(cache) == ["tiny", "org/name"]


@pytest.mark.parametrize("dry_run", [False, True])
def test_prune_leaves_what_is_held(cache: Path, dry_run: bool) -> None:
    with Hold(cache / "models" / "tiny"), Hold(cache / "models" / "tiny"), Hold(cache / "engines" / "tiny.engine"):
        assert [e.name for e in prune(cache, all=True, dry_run=dry_run)] == ["org/name"]
    assert names(cache)[0] == "tiny"
    assert "tiny" in [e.name for e in prune(cache, all=True, dry_run=dry_run)]


def test_prune_leaves_what_another_process_holds_until_it_dies(cache: Path) -> None:
    code = """
import sys
from pathlib import Path
from legato.weights.cache_dir import Hold
hold = Hold(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(cache / "models" / "tiny")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    prune(cache, all=True)
    assert names(cache) == ["tiny"]
    process.kill()
    process.communicate()
    prune(cache, all=True)
    assert names(cache) == []


def test_prune_removes_what_a_killed_prune_left(cache: Path) -> None:
    (cache / "models" / "tiny").rename(cache / "models" / ".trash-1-tiny")
    (cache / "engines" / "tiny.engine").rename(cache / "engines" / ".trash-1-tiny.engine")
    prune(cache, older_than_days=1)
    assert [p.name for kind in ("models", "engines") for p in (cache / kind).iterdir()] == [".part-1"]


def test_prune_needs_to_know_what(cache: Path) -> None:
    with pytest.raises(ConfigError, match="say how old"):
        prune(cache)
    assert len(names(cache)) == 3


def test_hold_of_nothing(cache: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Hold(cache / "models" / "absent")


def test_default_cache_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEGATO_CACHE", str(tmp_path))
    assert default_cache_dir() == tmp_path
    monkeypatch.delenv("LEGATO_CACHE")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_cache_dir() == Path("/home/somebody/.cache/legato")
