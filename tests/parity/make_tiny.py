"""Writes tests/golden/tiny_logits.npz: transformers' float32 logits of the tiny cases. Needs torch and transformers."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny_cases import CASES, tokens
from transformers import AutoConfig, AutoModelForCausalLM

from support.tiny_models import tiny_array, tiny_shapes

GOLDEN = Path(__file__).parents[1] / "golden" / "tiny_logits.npz"


@torch.inference_mode()
def reference(name: str, config: dict[str, Any]) -> np.ndarray:
    given = {key: value for key, value in copy.deepcopy(config).items() if (key, value) != ("head_dim", None)}
    if config["model_type"] == "qwen3":  # where transformers cannot derive it
        given.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    settings = AutoConfig.for_model(**given, pad_token_id=0)
    model = AutoModelForCausalLM.from_config(settings, attn_implementation="eager").eval()
    state = {key: torch.from_numpy(tiny_array(key, shape)) for key, shape in tiny_shapes(config).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, (name, unexpected)
    assert set(missing) <= ({"lm_head.weight"} if config["tie_word_embeddings"] else set()), (name, missing)
    return model(torch.tensor([tokens(name)])).logits[0].numpy()


def main() -> None:
    logits = {name: reference(name, config) for name, config in CASES.items()}
    for name, values in logits.items():
        assert values.std() >= 1, (name, values.std())
    np.savez_compressed(GOLDEN, **logits)
    print(f"{GOLDEN}: {len(logits)} cases, {GOLDEN.stat().st_size} bytes")


if __name__ == "__main__":
    main()
