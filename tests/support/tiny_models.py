"""Tiny random checkpoints in memory: every value is determined by a tensor name and a seed."""

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from legato.core.errors import CheckpointError
from legato.weights.source import RawTensor, TensorInfo

BASE = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "vocab_size": 80,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "granite": "GraniteForCausalLM",
}


def tiny_config(model_type: str, **changes: Any) -> dict[str, Any]:
    """A config.json; None is null. Windows are off unless asked for."""
    own = {
        "mistral": {"sliding_window": None},
        "qwen3": {"head_dim": None},
        "granite": {"attention_multiplier": 0.25},
    }.get(model_type, {})
    return {"model_type": model_type, "architectures": [ARCHITECTURES[model_type]], **BASE, **own, **changes}


def tiny_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes of a running family, written out independently of the lowering."""
    kind = config["model_type"]
    hidden, heads, width = config["hidden_size"], config["num_attention_heads"], config["intermediate_size"]
    dim = config.get("head_dim") or hidden // heads
    kv = config.get("num_key_value_heads", heads) * dim
    rows = {"q_proj": (heads * dim, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden)}
    out = {"o_proj": (hidden, heads * dim)}
    mlp = {"gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width)}
    biased = set(rows) if kind == "qwen2" else set()
    if config.get("attention_bias"):
        biased |= set(rows | out)
    if config.get("mlp_bias"):
        biased |= set(mlp)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for i in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{i}."
        for folder, matrices in (("self_attn", rows | out), ("mlp", mlp)):
            for name, shape in matrices.items():
                shapes[f"{prefix}{folder}.{name}.weight"] = shape
                if name in biased:
                    shapes[f"{prefix}{folder}.{name}.bias"] = shape[:1]
        if kind == "qwen3":
            shapes[f"{prefix}self_attn.q_norm.weight"] = shapes[f"{prefix}self_attn.k_norm.weight"] = (dim,)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}{norm}.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def tiny_array(name: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Uniform values: norms around 1, biases around 0, matrices so that outputs have a deviation near 1.5.

    Queries and keys are larger, so that attention has something to say and logits depend on every position.
    """
    state = np.random.RandomState(zlib.crc32(f"{seed}:{name}".encode()))
    values = state.random_sample(shape) * 2 - 1  # deviation 1 / sqrt(3)
    if name.endswith("norm.weight"):
        values = 1 + 0.3 * values
    elif len(shape) == 2 and "embed" not in name:
        gain = 4.0 if "q_proj" in name or "k_proj" in name else 2.5
        values *= gain / np.sqrt(shape[1])
    return values.astype(np.float32)


class MemorySource:
    """A TensorSource over float32 arrays; `dtypes` says which tensors are stored in another type (rounded to it)."""

    def __init__(
        self, config: Mapping[str, Any], arrays: Mapping[str, np.ndarray], dtypes: Mapping[str, str] | None = None
    ) -> None:
        self.config = config
        self.config_file = "config.json"
        self.arrays = dict(arrays)
        self._dtypes = dict(dtypes or {})

    def tensors(self) -> dict[str, TensorInfo]:
        return {name: self._info(name) for name in self.arrays}

    def _info(self, name: str) -> TensorInfo:
        return TensorInfo(name, self.arrays[name].shape, self._dtypes.get(name, "F32"), "model.safetensors")

    def read(self, name: str) -> RawTensor:
        if name not in self.arrays:
            raise CheckpointError(f"model.safetensors: tensor '{name}' is missing")
        info = self._info(name)
        rows = np.atleast_2d(self.arrays[name])
        return RawTensor(info, quantize(rows, GGMLQuantizationType[info.dtype]).view(np.uint8))

    def close(self) -> None:
        pass


def tiny_source(
    config: Mapping[str, Any], *, seed: int = 0, dtype: Callable[[str], str] = lambda name: "F32"
) -> MemorySource:
    """A checkpoint of a running family. dtype: the stored type of each matrix; vectors stay F32."""
    shapes = tiny_shapes(config)
    arrays = {name: tiny_array(name, shape, seed) for name, shape in shapes.items()}
    return MemorySource(config, arrays, {name: dtype(name) for name, shape in shapes.items() if len(shape) == 2})
