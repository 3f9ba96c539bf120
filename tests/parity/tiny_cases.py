"""Tiny random checkpoints of every running family whose logits are compared with transformers'."""

from typing import Any

import numpy as np

from support.tiny_models import tiny_config

POSITIONS = 64
_LLAMA3 = {
    "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16
}  # fmt: skip
_YARN = {"rope_type": "yarn", "original_max_position_embeddings": 16}
_QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}

_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-bias": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-theta": ("llama", {"rope_theta": 500.0}),
    "llama-linear": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
    "llama-llama3-8": ("llama", {"rope_scaling": {**_LLAMA3, "factor": 8.0}}),
    "llama-llama3-32": ("llama", {"rope_scaling": {**_LLAMA3, "factor": 32.0}}),
    # The tokens fill the whole context: the last one uses the last position (E04).
    "llama-yarn": ("llama", {"rope_scaling": {**_YARN, "factor": 4.0}, "max_position_embeddings": POSITIONS}),
    "llama-head-dim-32": ("llama", {"head_dim": 32}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1, "hidden_act": "gelu_pytorch_tanh"}),
    "mistral-full": ("mistral", {"num_key_value_heads": 4, "hidden_act": "gelu"}),
    "mistral-window": ("mistral", {"sliding_window": 8}),
    "mistral-odd-width": (
        "mistral",
        {"hidden_size": 56, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 20},
    ),
    "smollm3": ("smollm3", {"num_hidden_layers": 5, "no_rope_layer_interval": 4}),
    "smollm3-window": (
        "smollm3",
        {"no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 8, "attention_bias": True},
    ),
    "qwen2": ("qwen2", {}),
    "qwen2-window": ("qwen2", {**_QWEN_WINDOW, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 24}),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.4,
            "residual_multiplier": 0.6,
            "logits_scaling": 0.5,
            "attention_bias": True,
        },
    ),
    "qwen3-window": ("qwen3", {**_QWEN_WINDOW, "attention_bias": True, "hidden_act": "relu"}),
}

CASES: dict[str, dict[str, Any]] = {name: tiny_config(kind, **changes) for name, (kind, changes) in _CASES.items()}


def tokens(name: str) -> list[int]:
    state = np.random.RandomState(len(name))
    return [int(t) for t in state.randint(0, CASES[name]["vocab_size"], POSITIONS)]
