"""Every `pre` rule cuts as llama.cpp does, on a small vocabulary whose pieces cross the borders of words."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from legato.tokenizer.assets import assets_from_gguf
from legato.tokenizer.tokenizer import Tokenizer
from support.tiny_tokenizers import byte_alphabet, byte_level

FILE = Path(__file__).parents[1] / "golden" / "tokenizer_rules.json.gz"
GOLDEN: dict[str, Any] = json.loads(gzip.decompress(FILE.read_bytes()))


def tokenizer(pre: str) -> Tokenizer:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": GOLDEN["tokens"],
        "tokenizer.ggml.token_type": GOLDEN["types"],
        "tokenizer.ggml.merges": GOLDEN["merges"],
    }
    return Tokenizer(assets_from_gguf(metadata | {"tokenizer.ggml.add_bos_token": False}))


@pytest.mark.parametrize("pre", sorted(GOLDEN["ids"]))
def test_e16_rule(pre: str) -> None:
    encode = tokenizer(pre).encode
    wrong = [
        (text, ids) for text, ids in zip(GOLDEN["strings"], GOLDEN["ids"][pre], strict=True) if encode(text) != ids
    ]
    assert wrong == []


def test_e16_the_rules_differ_on_these_strings() -> None:
    """Else the test above could not tell one rule from another."""
    results = {json.dumps(ids) for ids in GOLDEN["ids"].values()}
    assert len(results) == len(GOLDEN["ids"]) - 1  # glm4 cuts as llama-bpe does


@pytest.mark.parametrize("pre", sorted(GOLDEN["ids"]))
def test_decode_gives_the_text_back(pre: str) -> None:
    tokens = tokenizer(pre)
    for text in GOLDEN["strings"]:
        assert tokens.decode(tokens.encode(text), skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("tekken", "Ab1 2", [b"Ab", b"1", b" ", b"2"]),
        ("deepseek-coder", "a\n1. 好", [b"a", b"\n", b"1", b".", b" ", "好".encode()]),
        ("gpt-4o", "IT's 1234", [b"IT's", b" ", b"123", b"4"]),
    ],
)
def test_e16_rules_without_an_oracle(pre: str, text: str, pieces: list[bytes]) -> None:
    """llama.cpp only approximates these rules: here their words are written down by hand."""
    words = byte_level(pre)._backend.pre_tokenizer.pre_tokenize_str(text)
    assert [bytes(ALPHABET.index(char) for char in word) for word, _ in words] == pieces


ALPHABET = byte_alphabet()
