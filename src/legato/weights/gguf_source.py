"""A GGUF file as a TensorSource."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from legato.weights.dtypes import BLOCKS
from legato.weights.gguf import GgufFile
from legato.weights.gguf_names import PERMUTED, config_from_metadata, hf_name, llama3_scaling, unpermute_rows
from legato.weights.messages import refuse
from legato.weights.source import RawTensor, TensorInfo

__all__ = ["GgufSource"]

_ROPE_FACTORS = "rope_freqs.weight"


class GgufSource:
    """Tensors under Hugging Face names with q and k rows in Hugging Face order; config translated; `metadata` as is."""

    def __init__(self, path: Path) -> None:
        self._file = GgufFile(path)
        self.metadata = self._file.metadata
        self.config_file = str(path)
        infos = self._file.tensors()
        config = config_from_metadata(self.metadata, infos, self.config_file)
        self._gguf_names: dict[str, str] = {}
        self._infos: dict[str, TensorInfo] = {}
        for gguf_name, info in infos.items():
            if gguf_name == _ROPE_FACTORS:
                config |= self._rope_scaling(config)
                continue
            name = hf_name(gguf_name)
            if name is None:
                refuse(path, f"tensor {gguf_name} is not known in this architecture")
            self._gguf_names[name] = gguf_name
            self._infos[name] = TensorInfo(name, info.shape, info.dtype, info.file)
        self.config: Mapping[str, Any] = config
        self._permuted = self._permuted_heads() if self.metadata["general.architecture"] in PERMUTED else {}

    def _permuted_heads(self) -> dict[str, int]:
        """Heads per tensor whose rows are to be brought into order."""
        heads = {"q": self.config["num_attention_heads"], "k": self.config["num_key_value_heads"]}
        permuted = {}
        for name, info in self._infos.items():
            for letter, count in heads.items():
                if f".self_attn.{letter}_proj." in name:
                    permuted[name] = count
                    if info.shape[0] % (2 * count):
                        refuse(
                            info.file,
                            f"tensor {self._gguf_names[name]} has {info.shape[0]} rows, "
                            f"which are not {count} heads of even size",
                        )
        return permuted

    def _rope_scaling(self, config: Mapping[str, Any]) -> dict[str, Any]:
        info = self._file.tensors()[_ROPE_FACTORS]
        head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
        what = f"tensor {_ROPE_FACTORS}"
        if info.dtype != "F32" or info.shape != (head_dim // 2,):
            refuse(self.config_file, f"{what} is {info.dtype} {info.shape}, not F32 ({head_dim // 2},)")
        if "rope_scaling" in config:
            refuse(self.config_file, f"{what} together with rope.scaling.type is not supported")
        factors = self._file.rows(_ROPE_FACTORS).view(np.float32)[0]
        scaling = llama3_scaling(factors, config["rope_theta"])
        if scaling is None:
            refuse(self.config_file, f"{what} holds factors that are not those of Llama 3's rope scaling")
        return {"rope_scaling": scaling} if scaling else {}

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def read(self, name: str) -> RawTensor:
        """Raises CheckpointError if there is no such tensor."""
        info = self._infos.get(name)
        if info is None:
            refuse(self.config_file, f"tensor {name} is missing")
        rows = self._file.rows(self._gguf_names[name])
        if name in self._permuted:
            if len(info.shape) == 1:  # a bias: its elements are the rows
                values, size = BLOCKS[info.dtype]
                if values != 1:
                    refuse(info.file, f"tensor {self._gguf_names[name]} is a bias in {info.dtype}")
                rows = unpermute_rows(rows.reshape(-1, size), self._permuted[name]).reshape(1, -1)
            else:
                rows = unpermute_rows(rows, self._permuted[name])
        return RawTensor(info, rows)

    def close(self) -> None:
        self._file.close()
