"""GGUF's conventions translated to Hugging Face's: metadata to config.json keys, tensor names, order of q and k rows.

One family in GGUF is one `general.architecture`; keys are `<architecture>.<key>`. Architectures in PERMUTED store the
rows of q and k so that rotary pairs are neighbours (2i, 2i + 1); everywhere else in Legato the pairs are
(i, i + head_dim / 2), as in Hugging Face's checkpoints.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from legato.weights.messages import refuse, shown
from legato.weights.source import TensorInfo

__all__ = ["PERMUTED", "config_from_metadata", "hf_name", "llama3_scaling", "unpermute_rows"]


@dataclass(frozen=True, slots=True)
class _Family:
    """name: in config.json. biases: keys of config.json that say whether matrices have biases; GGUF has none."""

    name: str
    permuted: bool
    biases: tuple[str, ...]


_FAMILIES = {
    "llama": _Family("LlamaForCausalLM", True, ("attention_bias", "mlp_bias")),
    "qwen2": _Family("Qwen2ForCausalLM", False, ()),
    "qwen3": _Family("Qwen3ForCausalLM", False, ("attention_bias",)),
    "smollm3": _Family("SmolLM3ForCausalLM", True, ("attention_bias", "mlp_bias")),
}
_BIASED = {"attention_bias": ".attn_q.bias", "mlp_bias": ".ffn_up.bias"}  # a tensor that is there with biases
PERMUTED = frozenset(architecture for architecture, family in _FAMILIES.items() if family.permuted)

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_IN_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.([a-z_]+)\.(weight|bias)")
_AT_TOP = re.compile(r"([a-z_]+)\.(weight|bias)")

# keys below "<architecture>." that are read here; the second set says nothing about the arithmetic
_READ = frozenset(
    {
        "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon",
        "attention.sliding_window", "attention.value_length", "block_count", "context_length", "embedding_length",
        "feed_forward_length", "rope.dimension_count", "rope.freq_base", "rope.scale_linear",
        "rope.scaling.attn_factor", "rope.scaling.factor", "rope.scaling.original_context_length",
        "rope.scaling.type", "vocab_size",
    }
)  # fmt: skip
_INERT = frozenset({"rope.scaling.finetuned", "tensor_data_layout"})


def hf_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor, None if there is none."""
    if match := _IN_BLOCK.fullmatch(name):
        layer, part, end = match.groups()
        return f"model.layers.{layer}.{_BLOCK[part]}.{end}" if part in _BLOCK else None
    if match := _AT_TOP.fullmatch(name):
        part, end = match.groups()
        return f"{_TOP[part]}.{end}" if part in _TOP else None
    return None


def unpermute_rows(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Rows (heads * d, ...) with rotary pairs as neighbours, to pairs half a head apart. A copy; blocks stay whole."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


class _Keys:
    """Typed access to the metadata of one architecture."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str, file: str) -> None:
        self.metadata = metadata
        self.prefix = architecture + "."
        self.file = file

    def fail(self, key: str, message: str) -> NoReturn:
        refuse(self.file, f"key {self.prefix}{key} {message}")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.metadata.get(self.prefix + key, default)
        if value is None:
            self.fail(key, "is missing")
        if isinstance(value, list) and value and value.count(value[0]) == len(value):
            value = value[0]  # one value per layer, all equal
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
            self.fail(key, f"is {shown(value)}, not a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.metadata.get(self.prefix + key, default)
        if value is None:
            self.fail(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            self.fail(key, f"is {shown(value)}, not a positive number")
        return value

    def has(self, key: str) -> bool:
        return self.prefix + key in self.metadata

    def check_known(self) -> None:
        for key, value in self.metadata.items():
            rest = key.removeprefix(self.prefix)
            if rest == key or rest in _READ or rest in _INERT:
                continue
            if rest in ("expert_count", "expert_used_count") and value == 0:
                continue
            self.fail(rest, f"= {shown(value)} is not supported")


def config_from_metadata(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], file: str) -> dict[str, Any]:
    """config.json keys for a GGUF file. `tensors` is by GGUF name: what it holds decides tying and biases."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in _FAMILIES:
        refuse(file, f"key general.architecture is {shown(architecture)}; supported: {', '.join(_FAMILIES)}")
    if metadata.get("split.count", 1) not in (0, 1):
        refuse(file, f"key split.count is {shown(metadata['split.count'])}: split files must be merged to one first")
    keys = _Keys(metadata, architecture, file)
    keys.check_known()
    heads = keys.integer("attention.head_count")
    hidden = keys.integer("embedding_length")
    family = _FAMILIES[architecture]
    config: dict[str, Any] = {
        "architectures": [family.name],
        "model_type": architecture,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": keys.integer("feed_forward_length"),
        "num_hidden_layers": keys.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.integer("attention.head_count_kv", heads),
        "max_position_embeddings": keys.integer("context_length"),
        "rms_norm_eps": _decimal(keys.number("attention.layer_norm_rms_epsilon")),
        "rope_theta": _decimal(keys.number("rope.freq_base", 10000.0)),
        "tie_word_embeddings": "output.weight" not in tensors,
        "vocab_size": _vocab_size(keys, tensors),
    }
    config |= _head_dim(keys, hidden, heads)
    config |= _scaling(keys)
    for key in family.biases:
        config[key] = any(name.startswith("blk.") and _BIASED[key] in name for name in tensors)
    if keys.has("attention.sliding_window"):
        if architecture != "llama":
            keys.fail("attention.sliding_window", "is not supported for this architecture")
        config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}  # a Llama with a window
        config["sliding_window"] = keys.integer("attention.sliding_window")
        for key in family.biases:
            if config.pop(key):
                keys.fail("attention.sliding_window", f"together with {key} is not supported")
    if architecture == "smollm3":  # fixed in this architecture, so the file does not say it
        config["no_rope_layer_interval"] = 4
        config["no_rope_layers"] = [int((i + 1) % 4 != 0) for i in range(config["num_hidden_layers"])]
    return config


def _decimal(value: float) -> float:
    """The shortest decimal of a float32: 9.999999747378752e-06 was 1e-05 before it was stored."""
    return float(str(np.float32(value)))


def _vocab_size(keys: _Keys, tensors: Mapping[str, TensorInfo]) -> int:
    if "token_embd.weight" not in tensors:
        refuse(keys.file, "tensor token_embd.weight is missing")
    rows = tensors["token_embd.weight"].shape[0]
    stated = keys.integer("vocab_size", rows)
    if stated != rows:
        keys.fail("vocab_size", f"is {stated}, but tensor token_embd.weight has {rows} rows")
    return rows


def _head_dim(keys: _Keys, hidden: int, heads: int) -> dict[str, int]:
    """head_dim where the file states it; it may differ from hidden / heads."""
    if not keys.has("attention.key_length") and hidden % heads:
        keys.fail("attention.key_length", f"is missing, and {hidden} is not a multiple of {heads} heads")
    head_dim = keys.integer("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.integer(key, head_dim) != head_dim:
            keys.fail(key, f"is {keys.integer(key)}: other than the key length {head_dim} is not supported")
    if head_dim % 2:
        keys.fail("attention.key_length", f"is {head_dim}, not even")
    return {"head_dim": head_dim} if keys.has("attention.key_length") else {}


def _scaling(keys: _Keys) -> dict[str, Any]:
    kind = keys.metadata.get(keys.prefix + "rope.scaling.type", "linear" if keys.has("rope.scale_linear") else "none")
    if kind == "none":
        return {}
    if kind not in ("linear", "yarn"):
        keys.fail("rope.scaling.type", f"is {shown(kind)}; supported: none, linear, yarn")
    factor = keys.number("rope.scale_linear" if keys.has("rope.scale_linear") else "rope.scaling.factor")
    scaling: dict[str, Any] = {"rope_type": kind, "factor": factor}
    if keys.has("rope.scaling.attn_factor") and keys.number("rope.scaling.attn_factor") != 1.0:
        keys.fail("rope.scaling.attn_factor", "other than 1 is not supported")
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = keys.integer("rope.scaling.original_context_length")
    return {} if factor == 1.0 else {"rope_scaling": scaling}


def llama3_scaling(factors: npt.NDArray[np.float32], theta: float) -> dict[str, Any] | None:
    """The config of Llama 3's rope scaling whose divisors of the inverse frequencies `rope_freqs.weight` holds.

    The file holds only the result, so Llama 3's own constants are tried. {} where all are 1; None where none fits.
    Formula: Llama 3.1 model card, `apply_scaling`.
    """
    if np.all(factors == 1.0):
        return {}
    if not np.all((factors >= 1.0) & np.isfinite(factors)):
        return None
    factor = float(factors.max())
    low, high, original = 1.0, 4.0, 8192
    dim = 2 * len(factors)
    wavelength = 2 * math.pi * theta ** (np.arange(0, dim, 2, dtype=np.float64) / dim)
    blend = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
    if not np.allclose(1.0 / ((1.0 - blend) / factor + blend), factors, rtol=1e-4):
        return None
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
