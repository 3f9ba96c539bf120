"""Rotary frequencies against transformers' (tests/golden/rope.json, made by tests/parity/make_rope.py)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from legato.core.errors import CheckpointError
from legato.models.config import Config
from legato.models.rope import rope
from support.tiny_models import tiny_config

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "rope.json").read_text())
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def read(changes: dict[str, Any]) -> Any:
    return rope(Config(tiny_config("llama", **changes), "config.json", "LlamaForCausalLM"), 64)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_e04_e06_frequencies_equal_transformers(case: dict[str, Any]) -> None:
    result = rope(Config(case["config"], "config.json", "X"), case["dim"])
    np.testing.assert_allclose(result.inv_freq, case["inv_freq"], rtol=1e-6)
    assert result.factor == pytest.approx(case["factor"], rel=1e-6)
    assert result.dim == case["dim"]


def test_e06_the_factor_counts() -> None:
    slow = {f: read({"rope_scaling": {"rope_type": "llama3", "factor": f, **LLAMA3}}).inv_freq[-1] for f in (8.0, 32.0)}
    assert slow[8.0] == pytest.approx(4 * slow[32.0])


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_e04_old_and_new_key_mean_the_same(key: str) -> None:
    scaling = {"factor": 4.0, "original_max_position_embeddings": 64}
    assert read({"rope_scaling": {key: "yarn", **scaling}}) == read({"rope_scaling": {"rope_type": "yarn", **scaling}})
    assert read({"rope_scaling": {key: "yarn", **scaling}}) != read({})


def test_rope_parameters_hold_theta() -> None:
    new = {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    assert read(new) == read({"rope_theta": 5e5})


def test_e06_unknown_and_dynamic_types_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"'rope_scaling\.rope_type' is 'ntk2', not one of"):
        read({"rope_scaling": {"rope_type": "ntk2", "factor": 2.0}})
    with pytest.raises(CheckpointError, match="'dynamic'"):
        read({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})


def test_unknown_rope_keys_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"'rope_scaling\.fctor'"):
        read({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "fctor": 3.0}})


def test_a_missing_factor_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"'rope_scaling\.factor' is missing"):
        read({"rope_scaling": {"rope_type": "linear"}})
