"""Small vocabularies for tests, as GGUF metadata and as tokenizers."""

from typing import Any

from legato.tokenizer.assets import TextAssets, assets_from_gguf
from legato.tokenizer.tokenizer import Tokenizer

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Merges in rank order over the byte alphabet: enough to see where words are cut.
_MERGES = (
    "h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "Ġ Ġ", "ĠĠ ĠĠ", "1 2", "12 3", "' s",
    "Ċ Ċ", "i m", "Ġ hello", "e n", "en d", "Ġ 1",
)  # fmt: skip


def byte_alphabet() -> list[str]:
    """The 256 characters that stand for bytes, in byte order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def byte_level_metadata(pre: str = "smollm", **changes: Any) -> dict[str, Any]:
    """GGUF metadata of a byte-level BPE: 3 control tokens, 1 user-defined token, 256 bytes, some merges."""
    pieces = list(dict.fromkeys(merge.replace(" ", "") for merge in _MERGES))
    tokens = [*CONTROL, "<tool>", *byte_alphabet(), *pieces]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(CONTROL) + [4] + [1] * (256 + len(pieces)),
        "tokenizer.ggml.merges": list(_MERGES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": CHATML,
        **changes,
    }


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """GGUF metadata of a sentencepiece BPE with byte fallback."""
    pieces = ["▁h", "el", "lo", "▁hel", "▁hello", "▁w", "or", "ld", "▁wor", "▁world", "▁▁", "▁▁▁▁", "as", "▁was"]
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz.,!?0123456789é", "\n"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *letters]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(pieces) + len(letters))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(pieces) + len(letters)),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **changes,
    }


def byte_level(pre: str = "smollm", **changes: Any) -> Tokenizer:
    return Tokenizer(assets_from_gguf(byte_level_metadata(pre, **changes)))


def sentencepiece(**changes: Any) -> Tokenizer:
    return Tokenizer(assets_from_gguf(sentencepiece_metadata(**changes)))


def tiny_assets() -> TextAssets:
    return assets_from_gguf(byte_level_metadata())
