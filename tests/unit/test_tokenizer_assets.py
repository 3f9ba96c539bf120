"""Assets from GGUF metadata and from folders: every wrong file is one CheckpointError that names file or key."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.core.errors import CheckpointError
from legato.tokenizer.assets import TextAssets, assets_from_folder, assets_from_gguf
from legato.tokenizer.tokenizer import Tokenizer
from support.tiny_tokenizers import CHATML, byte_level_metadata, sentencepiece_metadata, tiny_assets


def test_assets_survive_json() -> None:
    assets = tiny_assets()
    assert TextAssets.from_json(assets.to_json()) == assets


def test_gguf_assets() -> None:
    assets = tiny_assets()
    assert assets.chat_template == CHATML
    assert assets.bos_token_id == 1
    assert assets.eos_token_ids == (2, 0)
    assert not assets.add_bos
    assert assets.template_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


@pytest.mark.parametrize(
    ("pre", "changes", "begins"),
    [
        ("smollm", {}, False),
        ("smollm", {"tokenizer.ggml.add_bos_token": True}, True),
        ("llama-bpe", {}, True),
        ("llama-bpe", {"tokenizer.ggml.add_bos_token": False}, False),
    ],
)
def test_gguf_begin_token(pre: str, changes: dict[str, Any], begins: bool) -> None:
    assets = assets_from_gguf(byte_level_metadata(pre, **changes))
    assert assets.add_bos is begins
    assert Tokenizer(assets).encode("a")[:-1] == ([1] if begins else [])


def test_gguf_sentencepiece_adds_begin_token() -> None:
    assets = assets_from_gguf(sentencepiece_metadata())
    assert assets.add_bos
    assert Tokenizer(assets).encode("hello world")[0] == 1


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tokenizer.ggml.pre": "martian"}, "tokenizer.ggml.pre 'martian'"),
        ({"tokenizer.ggml.pre": None}, "tokenizer.ggml.pre None"),
        ({"tokenizer.ggml.model": "t5"}, "tokenizer.ggml.model 't5'"),
        ({"tokenizer.ggml.model": None}, "tokenizer.ggml.model is missing"),
        ({"tokenizer.ggml.tokens": []}, "tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.tokens": ["a", "a"], "tokenizer.ggml.token_type": [1, 1]}, "'a' twice"),
        ({"tokenizer.ggml.token_type": [1]}, "tokenizer.ggml.token_type has 1 entries"),
        ({"tokenizer.ggml.merges": ["a"]}, r"tokenizer.ggml.merges\[0\] 'a'"),
        ({"tokenizer.ggml.merges": ["a b", 0]}, r"tokenizer.ggml.merges\[1\] 0"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["a zzz"]}, "tokenizer"),
        ({"tokenizer.ggml.bos_token_id": 10**6}, "bos_token_id 1000000"),
        ({"tokenizer.ggml.bos_token_id": True}, "bos_token_id True"),
        ({"tokenizer.ggml.add_bos_token": "no"}, "add_bos_token 'no'"),
        ({"tokenizer.chat_template": 3}, "tokenizer.chat_template"),
    ],
)
def test_e16_gguf_not_understood_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        Tokenizer(assets_from_gguf(byte_level_metadata(**changes)))


@pytest.mark.parametrize(
    ("metadata", "key"),
    [
        (byte_level_metadata(), "tokenizer.ggml.tokens"),
        (byte_level_metadata(), "tokenizer.ggml.token_type"),
        (byte_level_metadata(), "tokenizer.ggml.merges"),
        (sentencepiece_metadata(), "tokenizer.ggml.tokens"),
        (sentencepiece_metadata(), "tokenizer.ggml.scores"),
    ],
)
@pytest.mark.parametrize("value", [None, True, [], {}], ids=str)
def test_one_value_of_another_type_is_refused_by_key_and_place(metadata: dict[str, Any], key: str, value: Any) -> None:
    mixed = [*metadata[key][:-1], value]
    with pytest.raises(CheckpointError, match=re.escape(f"{key}[{len(mixed) - 1}] {value!r}")):
        assets_from_gguf({**metadata, key: mixed})


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 400), st.floats(), st.text(max_size=5),
    st.dictionaries(st.text(), st.none()),
    st.lists(st.one_of(st.integers(-3, 9), st.text(max_size=3), st.none()), max_size=4),
)  # fmt: skip


@pytest.mark.parametrize("metadata", [byte_level_metadata(), sentencepiece_metadata()], ids=["gpt2", "llama"])
@given(data=st.data())
def test_gguf_of_any_types_gives_a_tokenizer_or_one_error(metadata: dict[str, Any], data: st.DataObject) -> None:
    keys = [*metadata, *(f"tokenizer.ggml.add_{name}_token" for name in ("bos", "eos")), "tokenizer.ggml.eot_token_id"]
    changes = data.draw(st.dictionaries(st.sampled_from(keys), VALUES, min_size=1, max_size=2))
    message = ""
    try:
        Tokenizer(assets_from_gguf({**metadata, **changes})).encode("hello")
    except CheckpointError as error:
        message = str(error)
    assert "\n" not in message


def test_sentencepiece_prefix_that_is_no_flag_is_refused() -> None:
    with pytest.raises(CheckpointError, match="add_space_prefix 0"):
        assets_from_gguf(sentencepiece_metadata(**{"tokenizer.ggml.add_space_prefix": 0}))


def test_sentencepiece_ties_are_refused() -> None:
    """Merges of equal score happen from left to right there, which a merge list cannot say; runs of spaces may tie."""
    metadata = sentencepiece_metadata()
    scores, tokens = metadata["tokenizer.ggml.scores"], metadata["tokenizer.ggml.tokens"]
    scores[tokens.index("▁▁")] = scores[tokens.index("▁▁▁▁")] = -99.0
    assets_from_gguf(metadata)
    scores[tokens.index("el")] = scores[tokens.index("or")]
    with pytest.raises(CheckpointError, match="ranks 'el' and 'or' equally"):
        assets_from_gguf(metadata)


def folder(path: Path, files: dict[str, Any]) -> Path:
    (path / "tokenizer.json").write_text(tiny_assets().tokenizer_json)
    for name, value in files.items():
        (path / name).write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_folder_assets(tmp_path: Path) -> None:
    files = {
        "tokenizer_config.json": {"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>"},
        "generation_config.json": {"eos_token_id": [0], "temperature": 0.5},
        "chat_template.jinja": "J",
    }
    assets = assets_from_folder(folder(tmp_path, files))
    assert assets.bos_token_id == 1
    assert assets.eos_token_ids == (0, 2)
    assert assets.chat_template == "J"
    assert assets.generation_config["temperature"] == 0.5
    assert assets.template_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert Tokenizer(assets).encode("hello") == Tokenizer(tiny_assets()).encode("hello")


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({"config.json": {"eos_token_id": 0}}, (0,)),
        ({"config.json": {"text_config": {"eos_token_id": [0, 1]}}}, (0, 1)),
        ({"config.json": {"eos_token_id": 0}, "generation_config.json": {"eos_token_id": 1}}, (1,)),
        ({"special_tokens_map.json": {"eos_token": "<|im_end|>"}}, (2,)),
        ({}, ()),
    ],
)
def test_folder_end_tokens(tmp_path: Path, files: dict[str, Any], ends: tuple[int, ...]) -> None:
    assert assets_from_folder(folder(tmp_path, files)).eos_token_ids == ends


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({"tokenizer_config.json": {"chat_template": "C"}}, "C"),
        ({"tokenizer_config.json": {"chat_template": [{"name": "rag", "template": "R"}]}}, None),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]
                }
            },
            "D",
        ),
        ({"tokenizer_config.json": {"chat_template": "C"}, "chat_template.json": {"chat_template": "J"}}, "J"),
        ({"chat_template.json": {"chat_template": "J"}, "chat_template.jinja": "X"}, "X"),
    ],
)
def test_folder_chat_template(tmp_path: Path, files: dict[str, Any], template: str | None) -> None:
    assert assets_from_folder(folder(tmp_path, files)).chat_template == template


def test_folder_tokens_only_in_the_config_are_added(tmp_path: Path) -> None:
    size = Tokenizer(tiny_assets()).vocab_size
    files = {"tokenizer_config.json": {"added_tokens_decoder": {str(size): {"content": "<|new|>", "special": True}}}}
    tokenizer = Tokenizer(assets_from_folder(folder(tmp_path, files)))
    assert tokenizer.encode("<|new|>", parse_special=True) == [size]
    assert tokenizer.is_special(size)


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"tokenizer.json": "{"}, "tokenizer.json"),
        ({"tokenizer.json": "[]"}, "tokenizer.json: holds no JSON object"),
        ({"tokenizer.json": "{}"}, "tokenizer.json: "),
        ({"tokenizer.json": {"model": {"type": "BPE", "vocab": {"a": "b"}, "merges": []}}}, "tokenizer.json: "),
        ({"tokenizer_config.json": "nope"}, "tokenizer_config.json"),
        ({"tokenizer_config.json": {"chat_template": 3}}, "chat_template"),
        ({"generation_config.json": {"eos_token_id": "x"}}, "generation_config.json: eos_token_id 'x'"),
    ],
)
def test_folder_damage_is_named(tmp_path: Path, files: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        assets_from_folder(folder(tmp_path, files))


def test_folder_without_tokenizer_json(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        assets_from_folder(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"tokenizer\.model alone is not supported"):
        assets_from_folder(tmp_path)
