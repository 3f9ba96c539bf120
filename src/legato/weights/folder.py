"""A checkpoint folder: config.json and safetensors, in one file or in shards.

model.safetensors.index.json, where there is one, decides which file each tensor comes from; files and tensors that
it does not name are ignored. Else everything is in model.safetensors.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from legato.core.errors import CheckpointError
from legato.weights.messages import refuse, shown
from legato.weights.safetensors import SafetensorsFile, parse_json
from legato.weights.source import RawTensor, TensorInfo

__all__ = ["CONFIG", "INDEX", "PICKLED", "SINGLE", "FolderSource", "read_index", "read_json"]

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
PICKLED_HINT = "pickled weights can run code and are not read; convert them to safetensors"
_MAX_JSON = 64 << 20


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the checkpoint. CheckpointError names the file."""
    try:
        size = path.stat().st_size
        if size > _MAX_JSON:
            refuse(path, f"has {size} bytes; the limit is {_MAX_JSON}")
        raw = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    return parse_json(raw, path, "the file")


def read_index(path: Path) -> dict[str, str]:
    """Tensor name -> file name, from an index file. A name that leads out of the folder is refused."""
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        refuse(path, "key weight_map is missing or not a filled object")
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not name.endswith(".safetensors") or any(c in name for c in "/\\\0"):
            refuse(path, f"tensor {tensor} is said to be in {shown(name)}, not a .safetensors file of this folder")
    return weight_map


class FolderSource:
    """A TensorSource over a folder. All files are opened, and all tensors of the index found, before it returns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config_file = str(folder / CONFIG)
        if not (folder / CONFIG).exists():
            refuse(folder, f"no {CONFIG} in this folder{_hint(folder)}")
        self.config: Mapping[str, Any] = read_json(folder / CONFIG)
        self._shards: dict[str, SafetensorsFile] = {}
        self._infos: dict[str, TensorInfo] = {}
        self._file_of: dict[str, SafetensorsFile] = {}
        if (folder / INDEX).exists():
            self._open_shards(read_index(folder / INDEX))
        elif (folder / SINGLE).exists():
            shard = self._open(SINGLE)
            self._infos = dict(shard.tensors())
            self._file_of = dict.fromkeys(self._infos, shard)
        else:
            refuse(folder, f"neither {INDEX} nor {SINGLE} in this folder{_hint(folder)}")

    @property
    def weight_files(self) -> list[Path]:
        return [shard.path for shard in self._shards.values()]

    def _open(self, name: str) -> SafetensorsFile:
        if name not in self._shards:
            self._shards[name] = SafetensorsFile(self.folder / name)
        return self._shards[name]

    def _open_shards(self, index: Mapping[str, str]) -> None:
        for tensor, name in index.items():
            shard = self._open(name)
            info = shard.tensors().get(tensor)
            if info is None:
                refuse(shard.path, f"tensor {tensor} is missing, though {INDEX} names this file for it")
            self._infos[tensor] = info
            self._file_of[tensor] = shard

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def read(self, name: str) -> RawTensor:
        """Raises CheckpointError if there is no such tensor."""
        if name not in self._file_of:
            refuse(self.folder, f"tensor {name} is missing")
        return self._file_of[name].read(name)

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()


def _hint(folder: Path) -> str:
    """What the folder holds instead."""
    names = sorted(path.name for path in folder.iterdir())
    for name in names:
        if name.endswith(PICKLED):
            return f", only {name}: {PICKLED_HINT}"
    for name in names:
        if name.endswith(".gguf"):
            return f", but {name}: name that file instead"
    for name in names:
        if name.endswith(".safetensors"):
            return f", only {name}: the index that says what is in it is missing"
    return ""
