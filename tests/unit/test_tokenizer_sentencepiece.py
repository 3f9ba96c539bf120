"""A sentencepiece vocabulary from GGUF metadata gives the ids of llama.cpp's tokenizer (E16)."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from legato.tokenizer.assets import assets_from_gguf
from legato.tokenizer.tokenizer import Tokenizer

FILE = Path(__file__).parents[1] / "golden" / "tokenizer_sentencepiece.json.gz"
GOLDEN: dict[str, Any] = json.loads(gzip.decompress(FILE.read_bytes()))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": GOLDEN["tokens"],
        "tokenizer.ggml.token_type": GOLDEN["types"],
        "tokenizer.ggml.scores": GOLDEN["scores"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return Tokenizer(assets_from_gguf(metadata))


@pytest.mark.parametrize("kind", ["plain", "special"])
def test_e16_ids_equal_llama_cpp(tokenizer: Tokenizer, kind: str) -> None:
    for text, ids in zip(GOLDEN["strings"], GOLDEN[kind], strict=True):
        found = tokenizer.encode(text, add_special_tokens=False, parse_special=kind == "special")
        assert found == ids, text


def test_decode_gives_the_text_back(tokenizer: Tokenizer) -> None:
    for text in GOLDEN["strings"]:
        ids = tokenizer.encode(text)
        assert ids[0] == 1
        assert tokenizer.decode(ids) == text.replace("\u2581", " ")
