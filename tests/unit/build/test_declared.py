"""The grammar's proof: families whose ops do not all run yet lower to verified plans from transformers' own shapes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from legato.build.dump import dump, from_json, to_json
from legato.build.lower import lower
from legato.build.plan import Plan
from legato.core.errors import CheckpointError
from legato.models.find import families, find
from support.golden import check_text
from support.tiny_models import MemorySource

FOLDER = Path(__file__).parents[2] / "golden" / "shapes"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def source_of(name: str) -> MemorySource:
    """A checkpoint with these shapes; its values do not matter."""
    golden = json.loads((FOLDER / f"{name}.json").read_text())
    arrays = {key: np.broadcast_to(np.float32(0), shape) for key, shape in golden["shapes"].items()}
    return MemorySource(golden["config"], arrays)


def plan_of(name: str, **options: Any) -> Plan:
    source = source_of(name)
    return lower(find(source.config, "config.json", declared=True), source, **options)


def test_the_families_of_the_proof_are_here() -> None:
    assert len(NAMES) == 16
    found = {json.loads((FOLDER / f"{name}.json").read_text())["config"]["model_type"] for name in NAMES}
    assert found <= set(families())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("format", ["auto", "bf16", "int8", "int4"])
def test_lowers_to_a_verified_plan(name: str, format: str) -> None:
    plan = plan_of(name, format=format)
    assert from_json(to_json(plan)) == plan


@pytest.mark.parametrize("name", NAMES)
def test_plans_do_not_change_by_accident(name: str) -> None:
    check_text(f"plans/{name}.txt", dump(plan_of(name)))


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_is_needed(name: str) -> None:
    """Without any one tensor the checkpoint is refused by its name, so every one is read."""
    source = source_of(name)
    arch = find(source.config, "config.json", declared=True)
    for key in [key for key in source.arrays if not key.startswith("visual.")]:
        array = source.arrays.pop(key)
        with pytest.raises(CheckpointError, match=f"'{key}' is missing"):
            lower(arch, source)
        source.arrays[key] = array


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"GraniteForCausalLM"}))
def test_they_are_refused_by_name(name: str) -> None:
    source = source_of(name)
    with pytest.raises(CheckpointError, match=f"'{name}' is described but its operations do not run yet"):
        find(source.config, "config.json")


def test_longrope_is_chosen_by_the_position_limit() -> None:
    assert plan_of("Phi3ForCausalLM", max_position=64).ropes[0].inv_freq[0] == 1.0
    assert plan_of("Phi3ForCausalLM", max_position=65).ropes[0].inv_freq[0] == 0.5


def test_shared_layers_read_the_last_layer_of_their_kind() -> None:
    plan = plan_of("Gemma3nForCausalLM")
    reads = [(op.group, op.layer) for op in plan.ops if op.kind == "attention"]
    assert reads == [(0, 0), (0, 1), (1, 0), (0, 1), (1, 0)]
    assert [(g.kind, g.num_layers) for g in plan.groups] == [("window", 2), ("full", 1)]
