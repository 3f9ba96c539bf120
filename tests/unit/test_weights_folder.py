"""Checkpoint folders: which file a tensor comes from, and what is refused."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from legato.core.errors import CheckpointError
from legato.weights.folder import FolderSource
from support.tiny_checkpoints import tensors, write_folder, write_shards

INDEX = "model.safetensors.index.json"
SHARD_2 = "model-00002-of-00002.safetensors"


def test_single_file(tmp_path: Path) -> None:
    values = tensors("llama")
    source = FolderSource(write_folder(tmp_path, "llama", values))
    assert source.config["model_type"] == "llama"
    assert source.config_file == str(tmp_path / "config.json")
    assert source.tensors().keys() == values.keys()
    for name, value in values.items():
        assert source.read(name).data.tobytes() == value.tobytes()
        assert source.tensors()[name].file == str(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="tensor nope is missing"):
        source.read("nope")


def test_e11_the_index_decides(tmp_path: Path) -> None:
    values = tensors("llama")
    weight_map = write_shards(tmp_path, "llama", values)
    name = next(n for n, file in weight_map.items() if file != SHARD_2)
    second = {n: values[n] for n, file in weight_map.items() if file == SHARD_2}
    wrong = np.zeros_like(values[name])
    safetensors.numpy.save_file(second | {name: wrong, "stray": wrong}, tmp_path / SHARD_2)
    safetensors.numpy.save_file({n: np.zeros_like(v) for n, v in values.items()}, tmp_path / "model.safetensors")
    (tmp_path / "consolidated.safetensors").write_bytes(b"broken")

    source = FolderSource(tmp_path)
    assert source.tensors().keys() == values.keys()
    for n, value in values.items():
        assert source.read(n).data.tobytes() == value.tobytes()
        assert source.tensors()[n].file == str(tmp_path / weight_map[n])
    assert sorted(source.weight_files) == [tmp_path / "model-00001-of-00002.safetensors", tmp_path / SHARD_2]


def test_e10_missing_shard(tmp_path: Path) -> None:
    write_shards(tmp_path, "llama", tensors("llama"))
    shard = tmp_path / SHARD_2
    whole = shard.read_bytes()
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"{SHARD_2}: No such file"):
        FolderSource(tmp_path)
    shard.write_bytes(b"")
    with pytest.raises(CheckpointError, match=f"{SHARD_2}: the file is empty"):
        FolderSource(tmp_path)
    shard.write_bytes(whole[:-100])
    with pytest.raises(CheckpointError, match=f"{SHARD_2}: tensor .* cut off or damaged"):
        FolderSource(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/x.safetensors",
        "..\\x.safetensors",
        "x.bin",
        "",
        3,
        "x\0.safetensors",
    ],
)
def test_e10_index_leads_out_of_the_folder(tmp_path: Path, name: object) -> None:
    folder = tmp_path / "m"
    weight_map: dict[str, object] = dict(write_shards(folder, "llama", tensors("llama")))
    safetensors.numpy.save_file({"x": np.ones(1, np.float32)}, tmp_path / "x.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map | {"x": name}}))
    with pytest.raises(
        CheckpointError, match=f"{INDEX}: tensor x is said to be in .*, not a .safetensors file of this"
    ):
        FolderSource(folder)


def test_shard_lacks_a_tensor_of_the_index(tmp_path: Path) -> None:
    weight_map = write_shards(tmp_path, "llama", tensors("llama"))
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map | {"x": SHARD_2}}))
    with pytest.raises(CheckpointError, match=f"{SHARD_2}: tensor x is missing, though {INDEX} names"):
        FolderSource(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": [1]}', '{"a": 1, "a": 2}'])
def test_broken_index(tmp_path: Path, text: str) -> None:
    write_folder(tmp_path, "llama", tensors("llama"))
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(CheckpointError, match=INDEX):
        FolderSource(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"a": 1, "a": 2}', "\xff"])
def test_broken_config(tmp_path: Path, text: str) -> None:
    write_folder(tmp_path, "llama", tensors("llama"))
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"config\.json: "):
        FolderSource(tmp_path)


class _Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.target), "w")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_g04_pickled_weights(tmp_path: Path, name: str) -> None:
    folder, target = tmp_path / "m", tmp_path / "ran"
    write_folder(folder, "llama", {})
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(_Bomb(target)))
    with pytest.raises(CheckpointError, match=f"only {name}: pickled weights can run code .* safetensors"):
        FolderSource(folder)
    assert not target.exists()


def test_hints(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json in this folder$"):
        FolderSource(tmp_path)
    (tmp_path / "m.gguf").touch()
    with pytest.raises(CheckpointError, match=r"no config\.json .* but m\.gguf: name that file"):
        FolderSource(tmp_path)
    write_shards(tmp_path, "llama", tensors("llama"))
    (tmp_path / INDEX).unlink()
    (tmp_path / "m.gguf").unlink()
    with pytest.raises(CheckpointError, match=r"only model-00001-of-00002\.safetensors: the index"):
        FolderSource(tmp_path)
