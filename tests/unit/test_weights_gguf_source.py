"""GGUF checkpoints seen through Hugging Face's conventions."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from legato.build.lower import lower
from legato.build.verify import verify
from legato.core.errors import CheckpointError
from legato.executor.reference import ReferenceExecutor
from legato.models import find
from legato.weights.folder import FolderSource
from legato.weights.gguf_names import config_from_metadata, llama3_scaling, unpermute_rows
from legato.weights.gguf_source import GgufSource
from legato.weights.source import TensorSource
from support.drive import logits
from support.tiny_checkpoints import FAMILIES, HEAD_DIM, HEADS, config, tensors, write_folder, write_gguf


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["F32", "Q8_0", "Q4_0", "Q4_1", "BF16"])
def test_e17_tensors_equal_those_of_the_safetensors_checkpoint(tmp_path: Path, family: str, dtype: str) -> None:
    """Bit for bit: quantizing rows and permuting them commute, since blocks lie within rows."""
    kind = gguf.GGMLQuantizationType[dtype]
    values = tensors(family, biases=family in ("llama", "smollm3"))
    source = GgufSource(write_gguf(tmp_path / "m.gguf", family, values, dtype=kind))
    assert source.tensors().keys() == values.keys()
    for name, value in values.items():
        raw = source.read(name)
        assert raw.info.shape == value.shape
        assert raw.info.name == name
        assert raw.info.dtype == (dtype if value.ndim == 2 else "F32")
        expected = gguf.quants.quantize(value, kind) if value.ndim == 2 else value
        assert raw.data.tobytes() == expected.tobytes(), name
        assert raw.data.shape == (value.shape[0] if value.ndim == 2 else 1, raw.data.size // raw.data.shape[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_config_equals_that_of_the_safetensors_checkpoint(tmp_path: Path, family: str) -> None:
    source = GgufSource(write_gguf(tmp_path / "m.gguf", family, tensors(family)))
    expected = config(family)
    if family != "qwen2":
        expected["attention_bias"] = False
    if family in ("llama", "smollm3"):
        expected["mlp_bias"] = False
    if family == "smollm3":
        expected |= {"no_rope_layer_interval": 4, "no_rope_layers": [1, 1]}
    assert source.config == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_both_checkpoints_lower_to_the_same_plan(tmp_path: Path, family: str) -> None:
    values = tensors(family)
    folder = FolderSource(write_folder(tmp_path / "m", family, values))
    file = GgufSource(write_gguf(tmp_path / "m.gguf", family, values))
    plans = [lower(find(s.config, s.config_file), s) for s in (folder, file)]
    verify(plans[0])
    assert plans[0] == plans[1]


def logits_of(source: TensorSource) -> np.ndarray:
    plan = lower(find(source.config, source.config_file), source)
    executor = ReferenceExecutor(plan, source, block_size=16, num_blocks=20, max_rows=64, max_seqs=1)
    return logits(executor, list(range(21)))


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_e17_logits_equal_those_of_the_safetensors_checkpoint(tmp_path: Path, family: str) -> None:
    values = tensors(family)
    expected = logits_of(FolderSource(write_folder(tmp_path / "m", family, values)))
    source = GgufSource(write_gguf(tmp_path / "m.gguf", family, values))
    assert np.array_equal(logits_of(source), expected)
    source._permuted = {"llama": {}, "qwen2": {"model.layers.0.self_attn.q_proj.weight": HEADS}}[family]
    wrong = logits_of(source)
    assert np.abs(wrong[20] - expected[20]).max() > 0.1


def test_e01_tied_embedding(tmp_path: Path) -> None:
    values = tensors("llama")
    del values["lm_head.weight"]
    assert GgufSource(write_gguf(tmp_path / "m.gguf", "llama", values)).config["tie_word_embeddings"] is True


def test_e07_head_dim_is_derived_where_it_is_not_stated(tmp_path: Path) -> None:
    lengths = dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"))
    path = write_gguf(tmp_path / "m.gguf", "llama", tensors("llama"), extra=lengths)
    assert "head_dim" not in GgufSource(path).config


def test_e09_biases_are_reported(tmp_path: Path) -> None:
    source = GgufSource(write_gguf(tmp_path / "m.gguf", "llama", tensors("llama", biases=True)))
    assert source.config["attention_bias"] is True
    assert source.config["mlp_bias"] is True


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"rope.scaling.type": "none"}, None),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 1.0}, None),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
    ],
)
def test_rope_scaling(tmp_path: Path, extra: dict[str, Any], expected: dict[str, Any] | None) -> None:
    source = GgufSource(write_gguf(tmp_path / "m.gguf", "qwen2", tensors("qwen2"), extra=extra))
    assert source.config.get("rope_scaling") == expected


def llama3_factors(factor: float, theta: float, dim: int) -> np.ndarray:
    """Divisors of the inverse frequencies, one by one from the definition."""
    factors = []
    for i in range(dim // 2):
        turns = 8192 / (2 * np.pi * theta ** (2 * i / dim))
        blend = (turns - 1) / 3
        factors.append(1.0 if turns > 4 else factor if turns < 1 else 1 / ((1 - blend) / factor + blend))
    return np.array(factors, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_e06_llama3_rope_factors(tmp_path: Path, factor: float) -> None:
    path = write_gguf(
        tmp_path / "m.gguf",
        "llama",
        tensors("llama"),
        extra={"rope.freq_base": 500000.0},
        extra_tensors={"rope_freqs.weight": llama3_factors(factor, 500000.0, HEAD_DIM)},
    )
    source = GgufSource(path)
    assert source.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert "rope_freqs.weight" not in source.tensors()


def test_rope_factors_of_another_kind() -> None:
    factors = llama3_factors(8.0, 500000.0, 64)
    assert llama3_scaling(factors, 10000.0) is None
    assert llama3_scaling(np.ones(32, np.float32), 10000.0) == {}
    factors[10] *= 1.01
    assert llama3_scaling(factors, 500000.0) is None
    for bad in (np.nan, np.inf, 0.0, -1.0):
        factors[:] = bad
        with np.errstate(all="raise"):
            assert llama3_scaling(factors, 500000.0) is None


def test_unpermute_rows() -> None:
    rows = np.arange(12).reshape(12, 1)
    assert unpermute_rows(rows, 2).ravel().tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


F32 = np.float32
REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "architecture": ("gemma", {}, {}, "general.architecture is 'gemma'; supported: llama"),
    "no heads": ("llama", {"attention.head_count": None}, {}, "llama.attention.head_count is missing"),
    "heads are text": ("llama", {"attention.head_count": "4"}, {}, "llama.attention.head_count is '4', not a pos"),
    "heads are 0": ("llama", {"attention.head_count": 0}, {}, "llama.attention.head_count is 0, not a positive"),
    "heads differ": ("llama", {"attention.head_count_kv": [2, 1]}, {}, r"head_count_kv is \[2, 1\]"),
    "eps is infinite": ("llama", {"attention.layer_norm_rms_epsilon": float("inf")}, {}, "rms_epsilon is inf"),
    "eps is NaN": ("llama", {"attention.layer_norm_rms_epsilon": float("nan")}, {}, "rms_epsilon is nan"),
    "vocabulary": ("llama", {"vocab_size": 50}, {}, "llama.vocab_size is 50, but tensor token_embd.weight has 48 rows"),
    "value length": ("llama", {"attention.value_length": 16}, {}, "llama.attention.value_length is 16"),
    "part rope": ("llama", {"rope.dimension_count": 16}, {}, "llama.rope.dimension_count is 16"),
    "odd heads": (
        "llama",
        {"attention.key_length": 31, "attention.value_length": 31, "rope.dimension_count": 31},
        {},
        "key_length is 31, not even",
    ),
    "derived head_dim": (
        "llama",
        {"attention.key_length": None, "attention.head_count": 5},
        {},
        "key_length is missing, and 64 is not a multiple of 5",
    ),
    "rope type": ("llama", {"rope.scaling.type": "longrope"}, {}, "rope.scaling.type is 'longrope'; supported"),
    "no rope factor": ("llama", {"rope.scaling.type": "linear"}, {}, "llama.rope.scaling.factor is missing"),
    "attention factor": (
        "qwen2",
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.attn_factor": 2.0},
        {},
        "attn_factor other than 1",
    ),
    "unknown key": ("llama", {"logit_scale": 2.0}, {}, r"key llama.logit_scale = 2.0 is not supported"),
    "experts": ("llama", {"expert_count": 8}, {}, "key llama.expert_count = 8 is not supported"),
    "window": ("qwen2", {"attention.sliding_window": 64}, {}, "sliding_window is not supported for this"),
    "split": ("llama", {"split.count": 2}, {}, "key split.count is 2: split files must be merged"),
    "unknown tensor": ("llama", {}, {"blk.0.attn_sinks.weight": np.ones(4, F32)}, "tensor blk.0.attn_sinks.weight is"),
    "rope factors": ("llama", {}, {"rope_freqs.weight": np.full(16, 2, F32)}, "tensor rope_freqs.weight holds factors"),
    "rope factors' shape": ("llama", {}, {"rope_freqs.weight": np.ones(8, F32)}, r"rope_freqs.weight is F32 \(8,\)"),
    "q rows": ("llama", {"attention.head_count": 3}, {}, "tensor blk.0.attn_q.weight has 128 rows, .* not 3 heads"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path: Path, case: str) -> None:
    family, extra, extra_tensors, message = REFUSED[case]
    values = tensors(family)
    path = write_gguf(tmp_path / "m.gguf", family, values, extra=extra, extra_tensors=extra_tensors)
    with pytest.raises(CheckpointError, match=message) as error:
        GgufSource(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("architecture", [None, ["llama"], 1])
def test_an_architecture_that_is_no_name_is_refused(architecture: object) -> None:
    with pytest.raises(CheckpointError, match=r"m\.gguf: key general\.architecture is .*; supported: llama"):
        config_from_metadata({"general.architecture": architecture}, {}, "m.gguf")


def test_mistral_is_a_llama_with_a_window(tmp_path: Path) -> None:
    extra = {"attention.sliding_window": 64}
    source = GgufSource(write_gguf(tmp_path / "m.gguf", "llama", tensors("llama"), extra=extra))
    assert source.config["model_type"] == "mistral"
    assert source.config["sliding_window"] == 64
    verify(lower(find(source.config, source.config_file), source))
    with pytest.raises(CheckpointError, match="sliding_window together with attention_bias"):
        GgufSource(write_gguf(tmp_path / "b.gguf", "llama", tensors("llama", biases=True), extra=extra))


def test_no_embedding(tmp_path: Path) -> None:
    values = tensors("llama")
    del values["model.embed_tokens.weight"]
    with pytest.raises(CheckpointError, match=r"tensor token_embd\.weight is missing"):
        GgufSource(write_gguf(tmp_path / "m.gguf", "llama", values))


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    source = GgufSource(write_gguf(tmp_path / "m.gguf", "llama", tensors("llama")))
    with pytest.raises(CheckpointError, match=r"m\.gguf: tensor model.layers.9.mlp.up_proj.weight is missing"):
        source.read("model.layers.9.mlp.up_proj.weight")
