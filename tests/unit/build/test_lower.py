"""From an Arch and a checkpoint to a plan: formats, fusions, and tensors that are missing, extra or wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from legato.build import plan as ops
from legato.build.dump import dump
from legato.build.lower import lower
from legato.build.plan import Plan
from legato.core.errors import CheckpointError, ConfigError
from legato.models.find import find
from support.golden import check_text
from support.tiny_models import ARCHITECTURES, MemorySource, tiny_config, tiny_source

WINDOW = {
    "mistral": {"sliding_window": 8},
    "qwen3": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
}


def plan_of(source: MemorySource, **options: Any) -> Plan:
    return lower(find(source.config, source.config_file), source, **options)


def formats(plan: Plan) -> dict[str, str]:
    return {t.name: t.format for t in plan.tensors}


def only(plan: Plan, kind: type) -> list[Any]:
    return [op for op in plan.ops if isinstance(op, kind)]


@pytest.mark.parametrize("model_type", ARCHITECTURES)
@pytest.mark.parametrize("format", ["auto", "fp32", "bf16", "int8", "int4"])
def test_running_families_lower_in_every_format(model_type: str, format: str) -> None:
    plan = plan_of(tiny_source(tiny_config(model_type)), format=format)
    assert len(only(plan, ops.Attention)) == 3
    assert plan.max_position == 256


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_plans_do_not_change_by_accident(model_type: str) -> None:
    changes = {"tie_word_embeddings": True, "num_hidden_layers": 2, **WINDOW.get(model_type, {})}
    source = tiny_source(tiny_config(model_type, **changes), dtype=lambda name: "BF16")
    check_text(f"plans/{model_type}.txt", dump(plan_of(source)))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("present", [True, False])
def test_e01_output_head(tied: bool, present: bool) -> None:
    source = tiny_source(tiny_config("llama", tie_word_embeddings=False))
    source.config = tiny_config("llama", tie_word_embeddings=tied)
    if not present:
        del source.arrays["lm_head.weight"]
    if not tied and not present:
        with pytest.raises(CheckpointError, match=r"config\.json: .*tensor 'lm_head.weight' is missing"):
            plan_of(source)
        return
    head = next(t for t in plan_of(source).tensors if t.name == "head")
    assert head.sources == (("model.embed_tokens.weight",) if tied else ("lm_head.weight",))


def test_every_tensor_is_needed() -> None:
    for name in tiny_source(tiny_config("qwen2", num_hidden_layers=1)).arrays:
        source = tiny_source(tiny_config("qwen2", num_hidden_layers=1))
        del source.arrays[name]
        with pytest.raises(CheckpointError, match=f"tensor '{name}' is missing"):
            plan_of(source)


def test_every_shape_counts() -> None:
    for name in tiny_source(tiny_config("qwen3", num_hidden_layers=1)).arrays:
        source = tiny_source(tiny_config("qwen3", num_hidden_layers=1))
        source.arrays[name] = source.arrays[name][:-1]
        with pytest.raises(CheckpointError, match=rf"model\.safetensors: tensor '{name}' has shape"):
            plan_of(source)


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_proj.bias", "model.layers.3.mlp.up_proj.weight", "visual.proj.weight"]
)
def test_e09_tensors_that_nothing_reads_are_refused(name: str) -> None:
    source = tiny_source(tiny_config("llama"))
    source.arrays[name] = np.zeros(64, np.float32)
    with pytest.raises(CheckpointError, match=rf"model\.safetensors: tensor '{name}' is not part of LlamaForCausalLM"):
        plan_of(source)


def test_stored_rope_frequencies_are_ignored() -> None:
    source = tiny_source(tiny_config("llama"))
    source.arrays["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(8, np.float32)
    plan_of(source)


def test_a_dtype_without_a_format_is_refused() -> None:
    source = tiny_source(tiny_config("llama"), dtype=lambda name: "F64")
    with pytest.raises(CheckpointError, match="dtype F64"):
        plan_of(source)


def test_biases_follow_their_matrices() -> None:
    plan = plan_of(tiny_source(tiny_config("llama", attention_bias=True, mlp_bias=True)))
    for op in only(plan, ops.Linear):
        assert op.bias == f"{op.weight}.bias"
    qkv, gate_up = (next(t for t in plan.tensors if t.name == f"layers.0.{n}.bias") for n in ("qkv", "gate_up"))
    assert [s.split(".")[-2] for s in qkv.sources] == ["q_proj", "k_proj", "v_proj"]
    assert gate_up.interleave


def by_part(**dtypes: str) -> Callable[[str], str]:
    return lambda name: next((dtype for part, dtype in dtypes.items() if f".{part}." in name), "BF16")


def test_q_k_v_of_one_format_are_one_matrix() -> None:
    plan = plan_of(tiny_source(tiny_config("llama")))
    stores = [op for op in only(plan, ops.Linear) if op.out == "qkv"]
    assert len(stores) == 3  # one per layer


def test_q_k_v_of_different_formats_fill_one_buffer() -> None:
    source = tiny_source(
        tiny_config("llama", num_hidden_layers=1), dtype=by_part(q_proj="Q4_1", k_proj="Q4_1", v_proj="F16")
    )
    plan = plan_of(source)
    stores = [op for op in only(plan, ops.Linear) if op.out == "qkv"]
    assert [(op.weight, op.x, op.column) for op in stores] == [
        ("layers.0.qkv.0", "normed.s8g32", 0),
        ("layers.0.qkv.1", "normed", 96),
    ]
    assert formats(plan)["layers.0.qkv.0"] == "q4_1"
    assert formats(plan)["layers.0.qkv.1"] == "f16"


def test_gate_and_up_of_different_formats_are_joined_exactly() -> None:
    plan = plan_of(tiny_source(tiny_config("llama"), dtype=by_part(gate_proj="Q4_1", up_proj="Q8_0")))
    assert formats(plan)["layers.0.gate_up"] == "f32"


@pytest.mark.parametrize(
    ("asked", "stored", "linear", "head"),
    [
        ("auto", "BF16", "bf16", "bf16"),
        ("auto", "F16", "f16", "f16"),
        ("auto", "Q4_0", "q4_0", "q4_0"),
        ("fp32", "Q4_1", "f32", "f32"),
        ("bf16", "F32", "bf16", "bf16"),
        ("int8", "Q8_0", "int8", "int8"),
        ("int4", "BF16", "int4", "int8"),
        ("int4", "Q4_1", "q4_1", "q4_1"),
        ("int4", "Q8_0", "int4", "q8_0"),
    ],
)
def test_formats(asked: str, stored: str, linear: str, head: str) -> None:
    plan = plan_of(tiny_source(tiny_config("llama"), dtype=lambda name: stored), format=asked)
    kinds = formats(plan)
    assert (kinds["layers.1.qkv"], kinds["layers.1.down"], kinds["head"]) == (linear, linear, head)
    own = plan_of(tiny_source(tiny_config("llama"), dtype=lambda name: stored))
    assert kinds["embedding"] == formats(own)["embedding"]
    assert kinds["model.norm"] == "f32"


def test_window_and_full_layers_have_their_own_cache_groups() -> None:
    config = tiny_config("qwen3", use_sliding_window=True, sliding_window=8, max_window_layers=2)
    plan = plan_of(tiny_source(config))
    assert [(g.kind, g.window, g.num_layers) for g in plan.groups] == [("full", None, 2), ("window", 8, 1)]
    assert [(op.group, op.layer, op.window) for op in only(plan, ops.Attention)] == [
        (0, 0, None),
        (0, 1, None),
        (1, 0, 8),
    ]


def test_layers_without_rope() -> None:
    plan = plan_of(tiny_source(tiny_config("smollm3", no_rope_layers=[1, 0, 1])))
    assert [op.rope for op in only(plan, ops.HeadsToCache)] == [0, None, 0]
    assert len(plan.ropes) == 1


def test_e04_the_limit_is_max_position_embeddings() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    source = tiny_source(tiny_config("llama", rope_scaling=scaling))
    assert plan_of(source).max_position == 256
    assert plan_of(source, max_position=100).max_position == 100
    with pytest.raises(ConfigError, match="max_model_len 257 is not between 1 and the model's limit 256"):
        plan_of(source, max_position=257)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="format 'fp8'"):
        plan_of(tiny_source(tiny_config("llama")), format="fp8")
