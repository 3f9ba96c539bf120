"""Fuzzes the GGUF reader, and the translation of what it read."""

import random
import struct
from pathlib import Path

from fuzz.fuzzer import main
from legato.weights.gguf import GgufFile
from legato.weights.gguf_source import GgufSource

__all__ = ["WORDS", "check", "make"]

HIDDEN, HEADS, MLP, VOCAB = 32, 2, 64, 8
INTEGERS = {
    "block_count": 1,
    "context_length": 64,
    "embedding_length": HIDDEN,
    "feed_forward_length": MLP,
    "attention.head_count": HEADS,
    "attention.head_count_kv": 1,
    "attention.key_length": HIDDEN // HEADS,
    "rope.dimension_count": HIDDEN // HEADS,
}
SHAPES = {
    "token_embd.weight": (HIDDEN, VOCAB),
    "output_norm.weight": (HIDDEN,),
    "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
    "blk.0.attn_q.bias": (HIDDEN,),
    "blk.0.attn_k.weight": (HIDDEN, HIDDEN // HEADS),
    "blk.0.ffn_up.weight": (HIDDEN, MLP),
    "rope_freqs.weight": (HIDDEN // HEADS // 2,),
}
TYPES = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34), 30: (1, 2)}
ARCHITECTURES = ("llama", "qwen2", "qwen3", "smollm3")
WORDS = [word.encode() for word in (*INTEGERS, *SHAPES, *ARCHITECTURES, "general.alignment", "split.count", "GGUF")]


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _pairs(rng: random.Random) -> list[bytes]:
    architecture = rng.choice(ARCHITECTURES)
    pairs = [_string("general.architecture") + struct.pack("<I", 8) + _string(architecture)]
    for key, value in INTEGERS.items():
        kind, layout = rng.choice(((4, "<II"), (5, "<Ii"), (10, "<IQ")))
        pairs.append(_string(f"{architecture}.{key}") + struct.pack(layout, kind, value))
    pairs.append(_string(f"{architecture}.attention.layer_norm_rms_epsilon") + struct.pack("<If", 6, 1e-5))
    tokens = b"".join(_string(chr(97 + i) * i) for i in range(VOCAB))
    pairs.append(_string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, VOCAB) + tokens)
    pairs.append(_string("tokenizer.ggml.token_type") + struct.pack("<IIQ", 9, 5, VOCAB) + bytes(4 * VOCAB))
    pairs.append(_string("x.nested") + struct.pack("<IIQIQBBIQ", 9, 9, 2, 7, 2, 0, 1, 0, 0))
    return pairs


def make(rng: random.Random) -> bytes:
    """A small model, with one fact in three files wrong."""
    pairs, infos, offset = _pairs(rng), [], 0
    for name, shape in SHAPES.items():
        if name == "rope_freqs.weight" and rng.random() < 0.8:
            continue
        kind = rng.choice(list(TYPES)) if len(shape) == 2 else 0
        values, size = TYPES[kind]
        infos.append(_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
        offset += -(-(shape[0] // values * size * (shape[1] if len(shape) == 2 else 1)) // 32) * 32
    wrong = rng.randrange(12)
    if wrong == 0:
        infos.append(rng.choice(infos))
    elif wrong == 1:
        pairs.append(rng.choice(pairs))
    elif wrong == 2:
        pairs.pop(rng.randrange(len(pairs)))
    elif wrong == 3:
        infos.pop(rng.randrange(len(infos)))
    head = b"GGUF" + struct.pack("<IQQ", rng.choice((2, 3)), len(infos), len(pairs)) + b"".join(pairs + infos)
    return head + bytes(-len(head) % 32) + rng.randbytes(offset)


def check(path: Path) -> None:
    """Reads all there is; the second half sees only files that the first half has taken."""
    file = GgufFile(path)
    size = path.stat().st_size
    assert sum(file.read(name).data.nbytes for name in file.tensors()) <= size
    source = GgufSource(path)
    for name, info in source.tensors().items():
        assert source.read(name).data.nbytes <= size
        assert source.read(name).info == info


if __name__ == "__main__":
    main("gguf", check, make, WORDS)
