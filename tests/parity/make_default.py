"""Writes tests/golden/default_model.npz: the default model in transformers, float32, on exactly dequantized weights.

usage: make_default.py MODEL.gguf      (needs torch, transformers, gguf, accelerate)
transformers reads and dequantizes the GGUF file with its own code, so nothing of ours is between file and logits.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from prompts import CHATS, GREEDY_TOKENS, TEXTS
from transformers import AutoModelForCausalLM

from legato.tokenizer.assets import assets_from_gguf
from legato.tokenizer.tokenizer import Tokenizer
from legato.weights.gguf_source import GgufSource

GOLDEN = Path(__file__).parents[1] / "golden" / "default_model.npz"
LOGIT_PROMPTS = (0, 5, 12, 13)  # prompts whose logits are kept
LOGIT_STRIDE = 16  # every 16th token id


def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    chats = [f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in CHATS]
    return [tokenizer.encode(text, parse_special=True) for text in (*chats, *TEXTS)]


def draft(model: torch.nn.Module, prompt: list[int], count: int) -> list[int]:
    """`count` greedy tokens, a token at a time over transformers' KV cache."""
    tokens: list[int] = []
    cache, new = None, prompt
    for _ in range(count):
        output = model(torch.tensor([new]), past_key_values=cache, use_cache=True)
        cache, new = output.past_key_values, [int(output.logits[0, -1].argmax())]
        tokens += new
    return tokens


@torch.inference_mode()
def greedy(model: torch.nn.Module, prompt: list[int]) -> tuple[list[int], list[float]]:
    """GREEDY_TOKENS tokens, end tokens included like any other, and how far the best logit led at each.

    The cache guesses them, and one pass without a cache judges: where the two differ its token stands.
    """
    known: list[int] = []
    while True:
        guess = known + draft(model, prompt + known, GREEDY_TOKENS - len(known))
        best = model(torch.tensor([prompt + guess])).logits[0, len(prompt) - 1 : -1].topk(2)
        tokens = best.indices[:, 0].tolist()
        wrong = next((i for i, token in enumerate(tokens) if token != guess[i]), None)
        if wrong is None:
            return tokens, (best.values[:, 0] - best.values[:, 1]).tolist()
        known = tokens[: wrong + 1]
        print(f"  the cache differs at {wrong}: gap {float(best.values[wrong, 0] - best.values[wrong, 1]):.2e}")


def main() -> None:
    path = Path(sys.argv[1]).resolve()
    source = GgufSource(path)
    tokenizer = Tokenizer(assets_from_gguf(source.metadata))
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    ids = prompts(tokenizer)
    runs = []
    for i, prompt in enumerate(ids):
        runs.append(greedy(model, prompt))
        print(f"{i + 1}/{len(ids)}: smallest gap {min(runs[-1][1]):.4f}", flush=True)
    arrays = {
        "lengths": np.array([len(prompt) for prompt in ids], np.int32),
        "prompts": np.concatenate(ids).astype(np.int32),
        "tokens": np.array([tokens for tokens, _ in runs], np.int32),
        "gaps": np.array([gaps for _, gaps in runs], np.float32),
    }
    with torch.inference_mode():
        for i in LOGIT_PROMPTS:
            sequence = ids[i] + runs[i][0][:40]
            logits = model(torch.tensor([sequence])).logits[0]
            arrays[f"logits_{i}"] = logits[-16:, ::LOGIT_STRIDE].numpy()
    with np.load(GOLDEN) as before:
        for name, new in arrays.items():
            if name not in before or before[name].shape != new.shape:
                print(f"{name}: new")
            elif not np.array_equal(before[name], new):
                print(f"{name}: moved by up to {np.abs(before[name].astype(np.float64) - new).max():.1e}")
    np.savez_compressed(GOLDEN, **arrays)
    print(f"{GOLDEN}: {GOLDEN.stat().st_size} bytes")


if __name__ == "__main__":
    main()
