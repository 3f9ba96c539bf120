"""config.json to Arch: which keys count, and what is refused by name."""

from pathlib import Path

import pytest

import legato.models
from legato.core.errors import CheckpointError
from legato.models.find import families, find
from legato.models.spec import Arch, Attention, Residual
from support.tiny_models import ARCHITECTURES, tiny_config


def attentions(arch: Arch) -> list[Attention]:
    bodies = [block.body for layer in arch.layers for block in layer.blocks if isinstance(block, Residual)]
    return [body for body in bodies if isinstance(body, Attention)]


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_running_families_are_found_by_name(model_type: str) -> None:
    arch = find(tiny_config(model_type), "config.json")
    assert arch.name == ARCHITECTURES[model_type]
    assert len(arch.layers) == 3
    assert arch.runs


def test_every_family_file_is_listed() -> None:
    assert set(ARCHITECTURES) <= set(families())
    assert not {"spec", "spec_bodies", "parts", "rope", "config", "find"} & set(families())


@pytest.mark.parametrize("name", families())
def test_a_family_is_a_small_file(name: str) -> None:
    text = (Path(legato.models.__file__).parent / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 60


@pytest.mark.parametrize("model_type", ["nonsense", "spec", "config", "../llama", "llama.x", ""])
def test_unknown_model_types_are_refused(model_type: str) -> None:
    with pytest.raises(CheckpointError, match="not supported"):
        find({**tiny_config("llama"), "model_type": model_type}, "x/config.json")


def test_another_head_on_a_known_model_type_is_refused() -> None:
    with pytest.raises(CheckpointError, match="LlamaForSequenceClassification"):
        find({**tiny_config("llama"), "architectures": ["LlamaForSequenceClassification"]}, "config.json")


@pytest.mark.parametrize(
    ("key", "method", "details"),
    [
        ("quantization_config", "gptq", {"bits": 4, "desc_act": True, "group_size": 32}),
        ("quantization_config", "awq", {"bits": 4, "modules_to_not_convert": ["model.layers.7.absent"]}),
        ("quantization_config", "compressed-tensors", {"ignore": ["lm_head", "model.absent"]}),
        ("compression_config", "sparseml", {}),
    ],
)
def test_e13_e14_quantized_checkpoints_are_refused_by_name(key: str, method: str, details: dict[str, object]) -> None:
    config = {**tiny_config("llama"), key: {"quant_method": method, **details}}
    with pytest.raises(CheckpointError, match=rf"x/config\.json: key '{key}' .*quantized \({method}\); not supported"):
        find(config, "x/config.json")


def test_no_model_type() -> None:
    with pytest.raises(CheckpointError, match=r"x/config\.json: key 'model_type' is missing"):
        find({}, "x/config.json")


@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "rms_norm_eps", "vocab_size", "hidden_act"])
def test_a_missing_key_is_named_with_file_and_architecture(key: str) -> None:
    config = tiny_config("llama")
    del config[key]
    with pytest.raises(CheckpointError, match=rf"x/config\.json: LlamaForCausalLM: key '{key}' is missing"):
        find(config, "x/config.json")


@pytest.mark.parametrize("value", ["64", 0, -1, 1.5, True, [64]])
def test_a_mistyped_size_is_refused(value: object) -> None:
    with pytest.raises(CheckpointError, match=r"'hidden_size' is .* not a positive integer"):
        find({**tiny_config("llama"), "hidden_size": value}, "config.json")


def test_unknown_keys_are_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match="'embedding_multiplier' is not understood"):
        find(tiny_config("llama", embedding_multiplier=12.0), "config.json")


def test_a_misspelt_key_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match="'atention_bias'"):
        find(tiny_config("llama", atention_bias=True), "config.json")


def test_keys_that_do_not_matter_and_neutral_values_are_accepted() -> None:
    extra = {
        "_model_name_or_path": "x",
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "rope_interleaved": False,
        "pretraining_tp": 1,
    }
    assert find(tiny_config("llama", **extra), "c") == find(tiny_config("llama"), "c")
    with pytest.raises(CheckpointError, match="rope_interleaved"):
        find(tiny_config("llama", rope_interleaved=True), "c")
    assert find(tiny_config("mistral", attention_bias=False), "c") == find(tiny_config("mistral"), "c")
    with pytest.raises(CheckpointError, match="'attention_bias' is not understood"):
        find(tiny_config("mistral", attention_bias=True), "c")


def test_another_activation_is_named() -> None:
    with pytest.raises(CheckpointError, match="'hidden_act' is 'xielu', not one of"):
        find(tiny_config("llama", hidden_act="xielu"), "c")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"head_dim": 32}, 32),
        ({}, 16),
        ({"hidden_size": 56, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16}, 16),
    ],
)
def test_e07_head_dim_explicit_wins_and_null_is_derived(changes: dict[str, int], expected: int) -> None:
    config = {**tiny_config("llama", **changes)}
    config.setdefault("head_dim", None)
    assert {a.head_dim for a in attentions(find(config, "c"))} == {expected}


def test_e07_heads_that_do_not_divide_the_width_need_a_head_dim() -> None:
    with pytest.raises(CheckpointError, match="does not divide hidden_size 56"):
        find(tiny_config("llama", hidden_size=56, num_attention_heads=3, num_key_value_heads=1), "c")


def test_e07_kv_heads_must_divide_heads() -> None:
    with pytest.raises(CheckpointError, match="'num_key_value_heads' is 3"):
        find(tiny_config("llama", num_key_value_heads=3), "c")


def test_an_odd_head_cannot_be_rotated() -> None:
    with pytest.raises(CheckpointError, match="'head_dim' is 17"):
        find(tiny_config("llama", head_dim=17), "c")


def test_mistral_windows_every_layer_or_none() -> None:
    assert [a.window for a in attentions(find(tiny_config("mistral", sliding_window=8), "c"))] == [8, 8, 8]
    assert [a.window for a in attentions(find(tiny_config("mistral"), "c"))] == [None] * 3


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_qwen_windows_need_the_flag(model_type: str) -> None:
    window = {"sliding_window": 8, "max_window_layers": 1}
    off = find(tiny_config(model_type, **window, use_sliding_window=False), "c")
    assert [a.window for a in attentions(off)] == [None] * 3
    on = find(tiny_config(model_type, **window, use_sliding_window=True), "c")
    assert [a.window for a in attentions(on)] == [None, 8, 8]
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    listed = find(tiny_config(model_type, **window, use_sliding_window=True, layer_types=types), "c")
    assert [a.window for a in attentions(listed)] == [8, None, 8]


def test_unknown_layer_types_are_refused() -> None:
    changes = {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["chunked_attention"] * 3}
    with pytest.raises(CheckpointError, match="chunked_attention"):
        find(tiny_config("qwen3", **changes), "c")


def test_smollm3_layers_without_rope() -> None:
    by_interval = find(tiny_config("smollm3", no_rope_layer_interval=2), "c")
    assert [a.rope is not None for a in attentions(by_interval)] == [True, False, True]
    listed = find(tiny_config("smollm3", no_rope_layers=[0, 1, 1]), "c")
    assert [a.rope is not None for a in attentions(listed)] == [False, True, True]
    windowed = find(tiny_config("smollm3", no_rope_layers=[0, 1, 1], use_sliding_window=True, sliding_window=8), "c")
    assert [a.window for a in attentions(windowed)] == [8, None, None]
