"""A byte-level tokenizer so small that tests can write answers byte by byte."""

from legato.tokenizer.assets import TextAssets, assets_from_gguf
from legato.tokenizer.tokenizer import Tokenizer
from support.tiny_tokenizers import CONTROL, byte_alphabet

__all__ = ["ASSETS", "CHATML", "EOS", "TOKENIZER", "VOCAB", "byte_level_assets", "byte_tokens"]

EOS = 2
CHATML = (
    "{% for m in messages %}{% if m['role'] == 'forbidden' %}{{ raise_exception('No.') }}{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level_assets(
    *, add_bos: bool = False, template: str = CHATML, words: tuple[str, ...] = (), controls: tuple[str, ...] = ()
) -> TextAssets:
    """A vocabulary of three control tokens, the 256 bytes, and a few longer pieces.

    words and controls: further tokens behind them, the latter control tokens.
    """
    merges = ["h e", "l l", "he ll", "hell o", "S T", "ST O", "O P"]
    pieces = [merge.replace(" ", "") for merge in merges]
    return assets_from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": [*CONTROL, *byte_alphabet(), *pieces, *words, *controls],
            "tokenizer.ggml.token_type": [3] * len(CONTROL)
            + [1] * (256 + len(pieces))
            + [4] * len(words)
            + [3] * len(controls),
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.add_bos_token": add_bos,
            "tokenizer.ggml.eos_token_id": EOS,
            "tokenizer.chat_template": template,
        }
    )


ASSETS = byte_level_assets()
TOKENIZER = Tokenizer(ASSETS)
VOCAB = TOKENIZER.vocab_size


def byte_tokens(text: str | bytes) -> list[int]:
    """One token per byte, so that characters are split over tokens."""
    return [3 + byte for byte in (text.encode() if isinstance(text, str) else text)]
