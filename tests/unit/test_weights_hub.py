"""Hugging Face ids against a server on this machine that answers as the Hub does."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.tiny_checkpoints import tensors, write_shards

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def etag(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


class Hub:
    """Serves the folder as org/tiny; `downloads` are the names of files whose content was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.downloads: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def answer(self, status: int, body: bytes, **headers: str) -> None:
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                prefix = f"/org/tiny/resolve/{COMMIT}/"
                files = [p for p in folder.rglob("*") if p.is_file()]
                if path in ("/api/models/org/tiny", *(f"/api/models/org/tiny/revision/{r}" for r in ("main", COMMIT))):
                    siblings = [{"rfilename": p.relative_to(folder).as_posix()} for p in files]
                    self.answer(200, json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": siblings}).encode())
                elif path == f"/api/models/org/tiny/tree/{COMMIT}":
                    tree = [
                        {"type": "file", "path": str(p.relative_to(folder)), "size": p.stat().st_size, "oid": etag(p)}
                        for p in files
                    ]
                    self.answer(200, json.dumps(tree).encode())
                elif path.startswith(prefix) and (folder / path[len(prefix) :]).is_file():
                    name = path[len(prefix) :]
                    if self.command == "GET":
                        hub.downloads.append(name)
                    raw = (folder / name).read_bytes()
                    self.answer(200, raw, ETag=f'"{etag(folder / name)}"', X_Repo_Commit=COMMIT)
                elif "revision" in path:
                    self.answer(404, b"", X_Error_Code="RevisionNotFound")
                else:
                    self.answer(404, b"", X_Error_Code="RepoNotFound")

            do_HEAD = do_GET

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    folder = tmp_path / "served"
    write_shards(folder, "llama", tensors("llama"))
    (folder / "original").mkdir()
    for name in ("tokenizer.json", "pytorch_model.bin", "consolidated.safetensors", "original/model.safetensors"):
        (folder / name).write_text("{}")
    server = Hub(folder)
    yield server
    server.close()


def run(address: str, cache: Path, model: str, revision: str | None = None, **environment: str) -> str:
    """Opens the model in a process of its own: huggingface_hub reads its environment when it is imported."""
    code = f"""
import sys
from pathlib import Path
from legato.core.errors import CheckpointError
from legato.weights.open import open_checkpoint
try:
    with open_checkpoint({model!r}, revision={revision!r}, cache_dir=Path({str(cache)!r})) as checkpoint:
        print(checkpoint.name, len(checkpoint.source.tensors()), (checkpoint.folder / "tokenizer.json").exists())
except CheckpointError as error:
    print("error:", error)
"""
    settings = {
        "HF_ENDPOINT": address,
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_XET": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | settings | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


GOOD = "tiny 21 True\n"


def test_download_then_offline(hub: Hub, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert run(hub.address, cache, "org/tiny") == GOOD
    assert sorted(hub.downloads) == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]
    assert [path.name for path in (cache / "hub").glob("models--*")] == ["models--org--tiny"]
    assert run(hub.address, cache, "org/tiny", COMMIT) == GOOD
    assert len(hub.downloads) == 5
    hub.close()
    assert run(hub.address, cache, "org/tiny") == GOOD
    assert run(hub.address, cache, "org/tiny", HF_HUB_OFFLINE="1") == GOOD


def test_errors_are_one_line(hub: Hub, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    unknown = run(hub.address, cache, "org/absent")
    assert unknown.startswith("error: org/absent: no such file or folder, and as a Hugging Face id: ")
    assert unknown.count("\n") == 1
    revision = run(hub.address, cache, "org/tiny", "v9")
    assert revision.startswith("error: org/tiny: no such file or folder, and as a Hugging Face id at revision v9: ")
    offline = run(hub.address, cache, "org/tiny", HF_HUB_OFFLINE="1")
    assert offline.startswith("error: org/tiny: no such file or folder, and as a Hugging Face id: ")
    hub.close()
    away = run(hub.address, cache, "org/tiny")
    assert "as a Hugging Face id: not in the cache, and the Hub does not answer: " in away
    assert away.count("\n") == 1
    assert list((cache / "hub").glob("models--*")) == []


def test_index_that_leads_out_of_the_folder(hub: Hub, tmp_path: Path) -> None:
    (hub.folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "../x.safetensors"}}')
    assert "tensor x is said to be in '../x.safetensors'" in run(hub.address, tmp_path / "cache", "org/tiny")
