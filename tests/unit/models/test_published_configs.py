"""config.json of published models, as their makers wrote them: all keys are understood."""

from typing import Any

import pytest

from legato.models.find import find

COMMON = {"attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.02, "use_cache": True}
V4 = {**COMMON, "hidden_act": "silu", "torch_dtype": "bfloat16", "transformers_version": "4.42.3"}
LLAMA3 = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}  # fmt: skip


def dims(hidden: int, heads: int, kv_heads: int, width: int, layers: int, vocab: int, limit: int) -> dict[str, int]:
    return {
        "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "intermediate_size": width, "num_hidden_layers": layers, "vocab_size": vocab, "max_position_embeddings": limit,
    }  # fmt: skip


PUBLISHED: dict[str, dict[str, Any]] = {
    "SmolLM2-135M-Instruct": {
        **V4, **dims(576, 9, 3, 1536, 30, 49152, 8192), "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "attention_bias": False, "is_llama_config": True, "mlp_bias": False, "pad_token_id": 2, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000,
        "tie_word_embeddings": True, "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}},
    },
    "Llama-3.1-8B": {
        **V4, **dims(4096, 32, 8, 14336, 32, 128256, 131072), "architectures": ["LlamaForCausalLM"],
        "model_type": "llama", "attention_bias": False, "mlp_bias": False, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": LLAMA3, "rope_theta": 500000.0, "tie_word_embeddings": False,
        "eos_token_id": [128001, 128008, 128009],
    },
    "TinyLlama-1.1B": {
        **V4, **dims(2048, 32, 4, 5632, 22, 32000, 2048), "architectures": ["LlamaForCausalLM"],
        "model_type": "llama", "attention_bias": False, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": False,
    },
    "Mistral-7B-v0.1": {
        **V4, **dims(4096, 32, 8, 14336, 32, 32000, 32768), "architectures": ["MistralForCausalLM"],
        "model_type": "mistral", "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
        "tie_word_embeddings": False,
    },
    "SmolLM3-3B": {
        **V4, **dims(2048, 16, 4, 11008, 36, 128256, 65536), "architectures": ["SmolLM3ForCausalLM"],
        "model_type": "smollm3", "attention_bias": False, "layer_types": ["full_attention"] * 36, "mlp_bias": False,
        "max_window_layers": 28, "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9, "pretraining_tp": 2,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None,
        "use_sliding_window": False,
    },
    "Qwen2.5-0.5B-Instruct": {
        **V4, **dims(896, 14, 2, 4864, 24, 151936, 32768), "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2", "max_window_layers": 21, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
        "sliding_window": 32768, "tie_word_embeddings": True, "use_sliding_window": False, "use_mrope": False,
    },
    "Qwen3-0.6B": {
        **V4, **dims(1024, 16, 8, 3072, 28, 151936, 40960), "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3", "attention_bias": False, "head_dim": 128, "max_window_layers": 28,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
        "tie_word_embeddings": True, "use_sliding_window": False,
    },
    "granite-3.1-2b-instruct": {
        **V4, **dims(2048, 32, 8, 8192, 40, 49155, 131072), "architectures": ["GraniteForCausalLM"],
        "model_type": "granite", "attention_bias": False, "attention_multiplier": 0.015625,
        "embedding_multiplier": 12.0, "logits_scaling": 8.0, "mlp_bias": False, "residual_multiplier": 0.22,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 5000000.0, "tie_word_embeddings": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_understood(name: str) -> None:
    config = PUBLISHED[name]
    arch = find(config, "config.json")
    assert arch.runs
    assert (arch.hidden, arch.vocab, len(arch.layers)) == (
        config["hidden_size"],
        config["vocab_size"],
        config["num_hidden_layers"],
    )
