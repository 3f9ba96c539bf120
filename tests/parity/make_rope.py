"""Writes tests/golden/rope.json: rotary frequencies as transformers computes them. Needs torch and transformers."""

import json
from pathlib import Path
from typing import Any

from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

GOLDEN = Path(__file__).parents[1] / "golden" / "rope.json"
LLAMA3 = {
    "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "default-theta-1e6": {"rope_theta": 1e6},
    "linear-2.5": {"rope_scaling": {"rope_type": "linear", "factor": 2.5}},
    "llama3-8": {"rope_theta": 5e5, "rope_scaling": {**LLAMA3, "factor": 8.0}},
    "llama3-32": {"rope_theta": 5e5, "rope_scaling": {**LLAMA3, "factor": 32.0}},
    "yarn-4": {"max_position_embeddings": 131072, "rope_scaling": YARN},
    "yarn-old-key": {"max_position_embeddings": 131072, "rope_scaling": {**YARN, "type": "yarn"}},
    "yarn-unscaled-limit": {"max_position_embeddings": 32768, "rope_scaling": YARN},
    "yarn-no-original": {"max_position_embeddings": 32768, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "yarn-mscale": {
        "max_position_embeddings": 163840,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096,
            "mscale": 1.0, "mscale_all_dim": 0.8, "beta_fast": 32, "beta_slow": 1,
        },
    },
    "yarn-attention-factor": {"max_position_embeddings": 131072, "rope_scaling": {**YARN, "attention_factor": 0.75}},
    "yarn-betas": {
        "max_position_embeddings": 131072,
        "rope_scaling": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    },
}  # fmt: skip


def main() -> None:
    cases = []
    for name, changes in CASES.items():
        for dim in (64, 128):
            config = {"max_position_embeddings": 2048, "rope_theta": 10000.0, **changes}
            base = {"hidden_size": 4 * dim, "num_attention_heads": 4, "head_dim": dim}
            rope = LlamaRotaryEmbedding(LlamaConfig(**json.loads(json.dumps(base | config))))
            frequencies = [float(f) for f in rope.inv_freq]
            cases.append(
                {"name": f"{name}-{dim}", "dim": dim, "config": base | config, "inv_freq": frequencies,
                 "factor": rope.attention_scaling}
            )  # fmt: skip
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
