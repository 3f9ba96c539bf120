"""Small checkpoints in both file formats, written with the gguf and safetensors libraries."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import safetensors.numpy

Tensors = dict[str, npt.NDArray[Any]]

FAMILIES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MLP, VOCAB, LAYERS = 64, 4, 2, 32, 96, 48, 2


def config(family: str, **changes: Any) -> dict[str, Any]:
    """config.json of a tiny model of the family. head_dim is not hidden / heads."""
    return {
        "architectures": [FAMILIES[family]],
        "model_type": family,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": VOCAB,
    } | changes


def tensors(family: str, *, biases: bool = False, seed: int = 0) -> Tensors:
    """Random float32 tensors under Hugging Face names. biases: on every linear layer (qwen2: on q, k, v always)."""
    rng = np.random.default_rng(seed)
    made: Tensors = {}

    def add(name: str, *shape: int) -> None:
        made[name] = rng.standard_normal(shape).astype(np.float32)

    def linear(name: str, n: int, k: int, bias: bool) -> None:
        add(f"{name}.weight", n, k)
        if bias:
            add(f"{name}.bias", n)

    add("model.embed_tokens.weight", VOCAB, HIDDEN)
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        add(f"{layer}.input_layernorm.weight", HIDDEN)
        qkv_bias = biases or family == "qwen2"
        linear(f"{layer}.self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN, qkv_bias)
        linear(f"{layer}.self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN, qkv_bias)
        linear(f"{layer}.self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN, qkv_bias)
        linear(f"{layer}.self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM, biases)
        if family == "qwen3":
            add(f"{layer}.self_attn.q_norm.weight", HEAD_DIM)
            add(f"{layer}.self_attn.k_norm.weight", HEAD_DIM)
        add(f"{layer}.post_attention_layernorm.weight", HIDDEN)
        linear(f"{layer}.mlp.gate_proj", MLP, HIDDEN, biases)
        linear(f"{layer}.mlp.up_proj", MLP, HIDDEN, biases)
        linear(f"{layer}.mlp.down_proj", HIDDEN, MLP, biases)
    add("model.norm.weight", HIDDEN)
    add("lm_head.weight", VOCAB, HIDDEN)
    return made


def write_folder(folder: Path, family: str, values: Tensors, **changes: Any) -> Path:
    """config.json and model.safetensors."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(family, **changes)))
    safetensors.numpy.save_file(values, folder / "model.safetensors")
    return folder


def write_shards(folder: Path, family: str, values: Tensors, shards: int = 2) -> dict[str, str]:
    """config.json, shards and the index, whose weight_map is returned."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(family)))
    names = sorted(values)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        safetensors.numpy.save_file({name: values[name] for name in names[i::shards]}, folder / file)
        weight_map |= dict.fromkeys(names[i::shards], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return weight_map


_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    stem, _, end = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{_IN_LAYER[part]}.{end}"
    return {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}[stem] + "." + end


def interleave(values: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Row order of q and k in llama's GGUF files: from (first half, second half) per head to pairs."""
    out = np.empty_like(values)
    dim = len(values) // heads
    for head in range(heads):
        for i in range(dim // 2):
            for half in range(2):
                out[head * dim + 2 * i + half] = values[head * dim + half * (dim // 2) + i]
    return out


def write_gguf(
    path: Path,
    family: str,
    values: Tensors,
    *,
    dtype: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    extra: Mapping[str, Any] | None = None,
    extra_tensors: Tensors | None = None,
) -> Path:
    """The same model as GGUF. Matrices in `dtype`. `extra`: metadata below the architecture; None removes a key."""
    metadata: dict[str, Any] = {
        "block_count": LAYERS,
        "context_length": 256,
        "embedding_length": HIDDEN,
        "feed_forward_length": MLP,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": HEAD_DIM,
        "rope.freq_base": 10000.0,
    } | dict(extra or {})
    writer = gguf.GGUFWriter(path, family)
    for key, value in metadata.items():
        full = key if key.startswith("split.") else f"{family}.{key}"
        if isinstance(value, str):
            writer.add_string(full, value)
        elif isinstance(value, float):
            writer.add_float32(full, value)
        elif isinstance(value, list):
            writer.add_array(full, value)
        elif value is not None:
            writer.add_uint32(full, value)
    for name, array in values.items():
        if family in ("llama", "smollm3"):
            if ".q_proj." in name:
                array = interleave(array, HEADS)
            if ".k_proj." in name:
                array = interleave(array, KV_HEADS)
        kind = dtype if array.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(array, kind), raw_dtype=kind)
    for name, array in (extra_tensors or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
