"""Encoding: control tokens only when asked for, spaces only where they belong, the same from every thread."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from legato.core.errors import CheckpointError, RequestError
from legato.tokenizer.assets import TextAssets
from legato.tokenizer.tokenizer import Tokenizer
from support.chat_cases import tokenizers
from support.tiny_tokenizers import byte_level, sentencepiece, tiny_assets

KINDS = tokenizers()
WORDS = ["<s>", "</s>", "[INST]", "<|user|>", "<|im_end|>", "<|im_", " ", "  ", "\n", "hello", "world", "▁", "é", "x"]
TEXTS = st.lists(st.sampled_from(WORDS)).map("".join)


def test_control_tokens_are_text_unless_parsed() -> None:
    tokenizer = byte_level()
    assert 2 not in tokenizer.encode("hello<|im_end|>")
    assert tokenizer.encode("hello<|im_end|>", parse_special=True) == [*tokenizer.encode("hello"), 2]
    assert tokenizer.decode(tokenizer.encode("<|im_end|>")) == "<|im_end|>"


def test_user_defined_tokens_are_always_parsed() -> None:
    tokenizer = byte_level()
    assert tokenizer.encode("a<tool>b") == [*tokenizer.encode("a"), 3, *tokenizer.encode("b")]
    assert not tokenizer.is_special(3)
    assert tokenizer.is_special(2)


@pytest.mark.parametrize("kind", sorted(KINDS))
@given(text=TEXTS)
def test_parsing_equals_the_library(kind: str, text: str) -> None:
    """The library finds control tokens in the whole text; here the text is cut first. Both give the same ids."""
    assets = KINDS[kind]
    expected = Backend.from_str(assets.tokenizer_json).encode(text).ids
    assert Tokenizer(assets).encode(text, parse_special=True) == expected


@pytest.mark.parametrize("kind", sorted(KINDS))
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="▁\ufffd"), max_size=30))
def test_decoding_equals_the_library(kind: str, text: str) -> None:
    assets = KINDS[kind]
    tokenizer = Tokenizer(assets)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == Backend.from_str(assets.tokenizer_json).decode(ids)


def test_begin_and_end_tokens() -> None:
    changes = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    tokenizer = byte_level(**changes)
    plain = tokenizer.encode("hello", add_special_tokens=False)
    assert tokenizer.encode("hello") == [1, *plain, 2]
    assert tokenizer.encode("") == [1, 2]
    assert tokenizer.encode("", add_special_tokens=False) == []


def test_a_word_gets_its_space_only_at_the_start() -> None:
    tokenizer = Tokenizer(KINDS["metaspace_first"])
    assert tokenizer.decode(tokenizer.encode("hello"), False) == "<s> hello"
    assert (
        tokenizer.decode(tokenizer.encode("<s>hello", parse_special=True, add_special_tokens=False), False)
        == "<s>hello"
    )


def test_lone_surrogates_are_a_request_error() -> None:
    with pytest.raises(RequestError, match="surrogate"):
        byte_level().encode("a\ud83d")


def test_token_bytes() -> None:
    tokenizer = sentencepiece()
    assert tokenizer.token_bytes(3 + 0xE2) == b"\xe2"
    assert tokenizer.token_bytes(tokenizer.encode("hello", add_special_tokens=False)[0]) == b" hello"
    assert byte_level().token_bytes(2) == b"<|im_end|>"
    assert byte_level().token_bytes(4) == b"\0"
    assert byte_level().vocab_size > 260


def test_threads_share_a_tokenizer() -> None:
    tokenizer = byte_level()
    texts = [f"hello world {i} <|im_end|>" * 20 for i in range(50)]
    expected = [tokenizer.encode(text, parse_special=i % 2 == 0) for i, text in enumerate(texts)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: tokenizer.encode(texts[i], parse_special=i % 2 == 0), range(50)))
    assert found == expected


@pytest.mark.parametrize("decoder", [{"type": "WordPiece", "prefix": "##", "cleanup": True}, None])
def test_unknown_decoders_are_refused_by_name(decoder: dict[str, object] | None) -> None:
    assets = tiny_assets()
    document = {**json.loads(assets.tokenizer_json), "decoder": decoder}
    name = decoder["type"] if decoder else "null"
    with pytest.raises(CheckpointError, match=f"decoder {name}"):
        Tokenizer(TextAssets(json.dumps(document), None, None, (), False))


def test_a_broken_tokenizer_json_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Tokenizer(TextAssets("{}", None, None, (), False))
