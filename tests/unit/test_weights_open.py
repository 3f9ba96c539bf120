"""What the model argument means."""

import os
import shutil
from pathlib import Path

import pytest

from legato.core.errors import CheckpointError
from legato.weights.hub import is_hub_id
from legato.weights.open import Checkpoint, open_checkpoint
from support.tiny_checkpoints import tensors, write_folder, write_gguf, write_shards


def opened(model: str | Path, cache: Path, revision: str | None = None) -> Checkpoint:
    return open_checkpoint(str(model), revision=revision, cache_dir=cache)


def test_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", "llama", tensors("llama"))
    with opened(folder, tmp_path) as checkpoint:
        assert checkpoint.name == "tiny"
        assert checkpoint.folder == folder
        assert checkpoint.gguf_metadata is None
        assert "lm_head.weight" in checkpoint.source.tensors()
    with pytest.raises(CheckpointError, match="after close"):
        checkpoint.source.read("lm_head.weight")


def test_folder_named_by_a_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_folder(tmp_path / "tiny", "llama", tensors("llama")))
    with opened(".", tmp_path) as checkpoint:
        assert checkpoint.name == "tiny"


def test_gguf(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.Q8_0.gguf", "llama", tensors("llama"))
    with opened(path, tmp_path) as checkpoint:
        assert checkpoint.name == "tiny.Q8_0"
        assert checkpoint.folder is None
        assert checkpoint.gguf_metadata is not None
        assert checkpoint.gguf_metadata["general.architecture"] == "llama"


def test_fingerprint_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    write_shards(folder, "llama", tensors("llama"))
    shutil.copytree(folder, tmp_path / "copy")

    def fingerprint(of: Path = folder) -> str:
        with opened(of, tmp_path) as checkpoint:
            return checkpoint.fingerprint

    seen = [fingerprint()]
    assert fingerprint(tmp_path / "copy") == seen[0]
    assert fingerprint() == seen[0]
    (folder / "stray.safetensors").write_bytes(b"x")
    assert fingerprint() == seen[0]
    (folder / "tokenizer.json").write_text("{}")
    seen.append(fingerprint())
    (folder / "tokenizer.json").write_text("[]")
    seen.append(fingerprint())
    shard = folder / "model-00001-of-00002.safetensors"
    os.utime(shard, (1, 1))
    seen.append(fingerprint())
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    os.utime(shard, (1, 1))
    seen.append(fingerprint())
    assert len(set(seen)) == len(seen)


def test_fingerprint_of_a_gguf(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", "llama", tensors("llama"))
    with opened(path, tmp_path) as first, opened(path, tmp_path) as second:
        assert first.fingerprint == second.fingerprint
    write_gguf(path, "llama", tensors("llama", seed=1))
    with opened(path, tmp_path) as changed:
        assert changed.fingerprint != first.fingerprint


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.bin", "pickled weights can run code"),
        ("model.pt", "pickled weights can run code"),
        ("model.PTH", "pickled weights can run code"),
        ("model.safetensors", "name the folder that it is in"),
        ("model.onnx", "not a folder or a .gguf file$"),
        ("model.gguf", "the file is empty"),
    ],
)
def test_other_files(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=message) as error:
        opened(tmp_path / name, tmp_path)
    assert str(error.value).startswith(str(tmp_path / name))


@pytest.mark.parametrize(
    "model", ["nope", "./nope", "/nope", "a/b/c", "../a", "a/../b", "org/na me", "x" * 5000, "a\0b"]
)
def test_neither_path_nor_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    monkeypatch.chdir(tmp_path)  # what stands beside the checkout is not known
    with pytest.raises(CheckpointError, match=r"no such file or folder, and not a Hugging Face id|File name too long"):
        opened(model, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_revision_is_only_for_ids(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"a revision \(main\) is only for Hugging Face ids, and this is a path"):
        opened(tmp_path, tmp_path, "main")
    with pytest.raises(CheckpointError, match=r"a revision \(main\) is only for Hugging Face ids, and no model"):
        opened("", tmp_path, "main")


def test_ids() -> None:
    assert is_hub_id("Qwen/Qwen2.5-0.5B-Instruct")
    for text in ("gpt2", "/a", "a/", "a/b/c", "a/..", "../a", "a/b\n", "-a/b", "a/b--c", "é/b"):
        assert not is_hub_id(text)
