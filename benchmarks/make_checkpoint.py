"""Checkpoints of random bf16 weights, for speed only: one of Llama-3.2-1B's shape, one with heads of 128.

python benchmarks/make_checkpoint.py SHAPE FOLDER TOKENIZER_DIR

FOLDER gets config.json and model.safetensors, the tokenizer of TOKENIZER_DIR, and model.gguf with the same numbers for
llama.cpp (without a vocabulary). Tensors are drawn and written one at a time.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

__all__ = ["SHAPES", "Shape", "make"]

THETA = 500_000.0
EPS = 1e-5
POSITIONS = 8192


@dataclass(frozen=True)
class Shape:
    """Of a Llama model with tied embeddings."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int

    def config(self) -> dict[str, object]:
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.mlp,
            "vocab_size": self.vocab,
            "max_position_embeddings": POSITIONS,
            "rms_norm_eps": EPS,
            "rope_theta": THETA,
            "hidden_act": "silu",
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "bos_token_id": 1,
            "eos_token_id": 2,
        }

    def tensors(self) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """Name in safetensors, name in GGUF, shape; vectors are norms."""
        q, kv, h, m = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.hidden, self.mlp
        yield "model.embed_tokens.weight", "token_embd.weight", (self.vocab, h)
        for i in range(self.layers):
            for name, short, shape in (
                ("input_layernorm", "attn_norm", (h,)),
                ("self_attn.q_proj", "attn_q", (q, h)),
                ("self_attn.k_proj", "attn_k", (kv, h)),
                ("self_attn.v_proj", "attn_v", (kv, h)),
                ("self_attn.o_proj", "attn_output", (h, q)),
                ("post_attention_layernorm", "ffn_norm", (h,)),
                ("mlp.gate_proj", "ffn_gate", (m, h)),
                ("mlp.up_proj", "ffn_up", (m, h)),
                ("mlp.down_proj", "ffn_down", (h, m)),
            ):
                yield f"model.layers.{i}.{name}.weight", f"blk.{i}.{short}.weight", shape
        yield "model.norm.weight", "output_norm.weight", (h,)


SHAPES = {
    "llama1b": Shape(hidden=2048, layers=16, heads=32, kv_heads=8, head_dim=64, mlp=8192, vocab=128_256),
    "wide": Shape(hidden=2048, layers=16, heads=16, kv_heads=8, head_dim=128, mlp=6144, vocab=49_152),
}


def make(shape: Shape, folder: Path, tokenizer: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape.config(), indent=1))
    for path in tokenizer.glob("*token*.json"):
        shutil.copy(path, folder / path.name)
    rng = np.random.default_rng(0)
    writer = _gguf_writer(shape, folder / "model.gguf")
    with (folder / "model.safetensors").open("wb") as file:
        header = json.dumps(_safetensors_header(shape)).encode()
        file.write(len(header).to_bytes(8, "little") + header)
        for _, _, dims in shape.tensors():
            values = np.ones(dims, np.float32) if len(dims) == 1 else rng.standard_normal(dims, np.float32) * 0.02
            bits = _bf16(values)
            file.write(bits.tobytes())
            writer.write_tensor_data(values if len(dims) == 1 else bits)
    writer.close()


def _bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Cut, not rounded: which random numbers they are does not matter."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def _safetensors_header(shape: Shape) -> dict[str, object]:
    header, at = {}, 0
    for name, _, dims in shape.tensors():
        size = 2 * int(np.prod(dims))
        header[name] = {"dtype": "BF16", "shape": dims, "data_offsets": (at, at + size)}
        at += size
    return header


def _gguf_writer(shape: Shape, path: Path) -> gguf.GGUFWriter:
    """With everything written but the tensors' data."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.mlp)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(THETA)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_vocab_size(shape.vocab)
    writer.add_tokenizer_model("no_vocab")
    bf16, f32 = (np.dtype(np.uint16), gguf.GGMLQuantizationType.BF16, 2), (np.dtype(np.float32), None, 4)
    for _, name, dims in shape.tensors():
        dtype, raw, width = f32 if len(dims) == 1 else bf16
        writer.add_tensor_info(name, dims, dtype, width * int(np.prod(dims)), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    return writer


if __name__ == "__main__":
    make(SHAPES[sys.argv[1]], Path(sys.argv[2]), Path(sys.argv[3]))
