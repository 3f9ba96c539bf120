"""Writes tests/golden/shapes/*.json: config.json and tensor shapes of tiny checkpoints as transformers saves them."""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open

FOLDER = Path(__file__).parents[1] / "golden" / "shapes"
_BASE = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
    "intermediate_size": 96, "vocab_size": 80, "max_position_embeddings": 256,
}  # fmt: skip
_IDS = {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
_FULL_AND_WINDOW = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}

# architecture: (config class, settings)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Gemma3ForCausalLM": (
        "Gemma3TextConfig",
        {**_BASE, "head_dim": 16, "query_pre_attn_scalar": 24, **_FULL_AND_WINDOW},
    ),
    "Phi3ForCausalLM": (
        "Phi3Config",
        {
            **_BASE, "original_max_position_embeddings": 64,
            "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
        },
    ),
    "GPT2LMHeadModel": ("GPT2Config", {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256, "vocab_size": 80}),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", {**_BASE, "rotary_pct": 0.25}),
    "FalconForCausalLM": (
        "FalconConfig",
        {"hidden_size": 64, "num_attention_heads": 4, "num_kv_heads": 2, "num_hidden_layers": 2, "vocab_size": 80,
         "new_decoder_architecture": True, "max_position_embeddings": 256},
    ),
    "BloomForCausalLM": ("BloomConfig", {"hidden_size": 64, "n_head": 4, "n_layer": 2, "vocab_size": 80}),
    "MixtralForCausalLM": ("MixtralConfig", {**_BASE, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "Qwen3MoeForCausalLM": (
        "Qwen3MoeConfig",
        {**_BASE, "num_hidden_layers": 3, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
         "moe_intermediate_size": 32, "mlp_only_layers": [1], "norm_topk_prob": True},
    ),
    "GptOssForCausalLM": (
        "GptOssConfig",
        {**_BASE, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, **_FULL_AND_WINDOW},
    ),
    "DeepseekV3ForCausalLM": (
        "DeepseekV3Config",
        {**_BASE, "num_key_value_heads": 4, "first_k_dense_replace": 1, "moe_intermediate_size": 32,
         "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2,
         "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16},
    ),
    "Mamba2ForCausalLM": (
        "Mamba2Config",
        {"hidden_size": 64, "num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "num_hidden_layers": 2,
         "vocab_size": 80, "chunk_size": 32},
    ),
    "GraniteForCausalLM": (
        "GraniteConfig",
        {**_BASE, "embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22,
         "attention_multiplier": 0.015625},
    ),
    "CohereForCausalLM": ("CohereConfig", {**_BASE, "logit_scale": 0.0625}),
    "Gemma3nForCausalLM": (
        "Gemma3nTextConfig",
        {**_BASE, "num_hidden_layers": 5, "head_dim": 16,
         "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 72, "num_kv_shared_layers": 2,
         "laurel_rank": 8, "altup_num_inputs": 3,
         "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0, 0.0], "sliding_window": 8,
         "layer_types": [f"{kind}_attention" for kind in ("sliding", "sliding", "full", "sliding", "full")]},
    ),
    "BertModel": (
        "BertConfig",
        {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 96, "vocab_size": 80,
         "max_position_embeddings": 256},
    ),
}  # fmt: skip


def write(architecture: str, config: Any) -> None:
    """Saves a tiny model as a user would, and keeps its config.json and the shapes in its file."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        getattr(transformers, architecture)(config).save_pretrained(folder)
        saved = json.loads((Path(folder) / "config.json").read_text())
        with safe_open(Path(folder) / "model.safetensors", "pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in sorted(file.keys())}
    lines = ",\n".join(f'  "{name}": {json.dumps(shape)}' for name, shape in shapes.items())
    (FOLDER / f"{architecture}.json").write_text(f'{{"config": {json.dumps(saved)},\n"shapes": {{\n{lines}\n}}}}\n')
    print(architecture, len(shapes), "tensors")


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for architecture, (config_class, settings) in MODELS.items():
        write(architecture, getattr(transformers, config_class)(**settings, **_IDS))
    text = {**_BASE, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}, **_IDS}
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}
    write(
        "Qwen2_5_VLForConditionalGeneration",
        transformers.Qwen2_5_VLConfig(
            text_config=text, vision_config={**vision, "fullatt_block_indexes": [0]},
            image_token_id=3, video_token_id=4, vision_start_token_id=5, vision_end_token_id=6,
        ),
    )  # fmt: skip


if __name__ == "__main__":
    main()
