"""The default model's tokenizer, built from its GGUF metadata, gives the ids of llama.cpp's tokenizer (E16)."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from legato.tokenizer.assets import assets_from_gguf
from legato.tokenizer.tokenizer import Tokenizer
from legato.weights.cache_dir import default_cache_dir
from legato.weights.open import open_checkpoint

FILE = Path(__file__).parents[1] / "golden" / "tokenizer_smollm2.json.gz"
GOLDEN: dict[str, Any] = json.loads(gzip.decompress(FILE.read_bytes()))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    with open_checkpoint("", revision=None, cache_dir=default_cache_dir()) as checkpoint:
        assert checkpoint.gguf_metadata is not None
        return Tokenizer(assets_from_gguf(checkpoint.gguf_metadata))


def test_e16_ids_equal_llama_cpp(tokenizer: Tokenizer) -> None:
    assert len(GOLDEN["strings"]) >= 2000
    for text, ids in zip(GOLDEN["strings"], GOLDEN["plain"], strict=True):
        assert tokenizer.encode(text) == ids, text
    for text, ids in zip(GOLDEN["with_control"], GOLDEN["special"], strict=True):
        assert tokenizer.encode(text, parse_special=True) == ids, text


def test_e16_digits_are_split_before_words(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a  12") == [81, 256, 33, 34]


def test_decode_gives_the_text_back(tokenizer: Tokenizer) -> None:
    """Except for control characters whose byte is not in the vocabulary: encoding drops them, as llama.cpp does."""
    known = {tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)}
    dropped = {chr(byte) for byte in range(0x80) if bytes([byte]) not in known}
    assert all(ord(char) < 0x20 for char in dropped)
    for text in GOLDEN["strings"]:
        kept = "".join(char for char in text if char not in dropped)
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == kept
