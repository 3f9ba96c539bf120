"""Incremental decoding equals whole decoding, for every cut, and never shows a character before it is complete."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.tokenizer.tokenizer import Tokenizer
from support.tiny_tokenizers import byte_level, sentencepiece

TOKENIZERS = {
    "byte_level": byte_level(),
    "sentencepiece": sentencepiece(),
    "sentencepiece_no_prefix": sentencepiece(**{"tokenizer.ggml.add_space_prefix": False}),
}
KINDS = sorted(TOKENIZERS)


def split(ids: list[int], cuts: list[int]) -> list[list[int]]:
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [ids[start:end] for start, end in pairwise(edges)]


IDS = st.lists(st.integers(0, 320), max_size=40)
CUTS = st.lists(st.integers(0, 1000), max_size=12)


@pytest.mark.parametrize("kind", KINDS)
@given(ids=IDS, cuts=CUTS, skip=st.booleans(), continuation=st.booleans())
def test_a04_joined_deltas_equal_the_whole_decode(
    kind: str, ids: list[int], cuts: list[int], skip: bool, continuation: bool
) -> None:
    tokenizer = TOKENIZERS[kind]
    whole = tokenizer.decoder(skip, continuation=continuation)
    expected = whole.push(ids) + whole.finish()
    if not continuation:
        assert expected == tokenizer.decode(ids, skip)
    decoder = tokenizer.decoder(skip, continuation=continuation)
    deltas = [decoder.push(part) for part in split(ids, cuts)]
    deltas.append(decoder.finish())
    assert "".join(deltas) == expected


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(max_size=40), cuts=CUTS)
def test_a04_valid_text_shows_no_replacement_character(kind: str, text: str, cuts: list[int]) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text, add_special_tokens=False)
    decoder = tokenizer.decoder(False)
    deltas = [decoder.push(part) for part in split(ids, cuts)]
    if "\ufffd" not in text:
        assert not any("\ufffd" in delta for delta in deltas)
    assert decoder.finish() == ""
    assert "".join(deltas) == tokenizer.decode(ids, False)


@pytest.mark.parametrize("kind", KINDS)
@given(ids=IDS, skip=st.booleans())
def test_decode_is_the_utf8_of_the_token_bytes(kind: str, ids: list[int], skip: bool) -> None:
    tokenizer = TOKENIZERS[kind]
    shown = [id for id in ids if not (skip and tokenizer.is_special(id))]
    whole = tokenizer.decoder(skip, continuation=True)
    data = b"".join(map(tokenizer.token_bytes, shown))
    assert whole.push(ids) + whole.finish() == data.decode("utf-8", errors="replace")


@pytest.mark.parametrize("text", ["\U0001fae0", "\u9f9c", "👨‍👩‍👧‍👦", "e\u0301"])
def test_a04_one_token_at_a_time(text: str) -> None:
    tokenizer = byte_level()
    decoder = tokenizer.decoder()
    deltas = [decoder.push([id]) for id in tokenizer.encode(text)]
    assert "".join(deltas) == text
    assert all(char in text for delta in deltas for char in delta)
    assert "" in deltas


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    id_of = {tokenizer.token_bytes(id): id for id in range(4, 260)}
    return [id_of[bytes([byte])] for byte in data]


def test_a05_a_lone_byte_becomes_one_replacement_character() -> None:
    tokenizer = byte_level()
    ids = byte_ids(tokenizer, "🙂".encode() + b"\x85" + b"ok")
    decoder = tokenizer.decoder()
    deltas = [decoder.push([id]) for id in ids]
    assert deltas == ["", "", "", "🙂", "\ufffd", "o", "k"]
    assert decoder.finish() == ""
    assert tokenizer.decode(ids) == "🙂\ufffdok"


def test_a05_a_cut_character_ends_the_same_in_stream_and_whole() -> None:
    tokenizer = byte_level()
    ids = byte_ids(tokenizer, b"ok" + "🙂".encode()[:3])
    decoder = tokenizer.decoder()
    streamed = "".join(decoder.push([id]) for id in ids) + decoder.finish()
    assert streamed == tokenizer.decode(ids) == "ok\ufffd"


def test_special_tokens_are_skipped_or_shown() -> None:
    tokenizer = byte_level()
    ids = [1, *tokenizer.encode("hello"), 2]
    assert tokenizer.decode(ids) == "hello"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>hello<|im_end|>"


def test_first_space_of_a_sentencepiece_text() -> None:
    tokenizer = sentencepiece()
    ids = tokenizer.encode("hello world", add_special_tokens=False)
    assert tokenizer.decode(ids) == "hello world"
    decoder = tokenizer.decoder(continuation=True)
    assert decoder.push(ids) == " hello world"


def test_ids_beyond_the_vocabulary_give_no_text() -> None:
    assert byte_level().decode([10**6, 5]) == byte_level().decode([5])
    assert byte_level().token_bytes(-1) == b""
