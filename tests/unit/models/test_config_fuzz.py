"""Whatever stands in a config.json: a checkpoint lowers to a verified plan, or is refused with a CheckpointError."""

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.build.lower import lower
from legato.core.errors import CheckpointError
from legato.models.find import find
from support.tiny_models import ARCHITECTURES, MemorySource, tiny_config, tiny_shapes

FOLDER = Path(__file__).parents[2] / "golden" / "shapes"
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.8}
CONFIGS: list[dict[str, Any]] = [
    *(tiny_config(name) for name in ARCHITECTURES),
    tiny_config("llama", rope_scaling=LLAMA3),
    tiny_config("qwen2", rope_scaling=YARN, use_sliding_window=True, sliding_window=8, max_window_layers=1),
]
GOLDEN = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
CHECKPOINTS = [(config, tiny_shapes(config)) for config in CONFIGS]
CHECKPOINTS += [(golden["config"], {k: tuple(v) for k, v in golden["shapes"].items()}) for golden in GOLDEN]

scalars = st.none() | st.booleans() | st.integers(-3, 1 << 40) | st.floats() | st.sampled_from(["", "silu", "yarn"])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("mixtral", "num_experts_per_tok", 5),
        ("qwen3_moe", "num_experts_per_tok", 1000),
        ("gpt_oss", "num_experts_per_tok", 1000),
        ("deepseek_v3", "num_experts_per_tok", 1000),
        ("deepseek_v3", "topk_group", 1000),
        ("deepseek_v3", "n_group", 3),
        ("qwen3_moe", "mlp_only_layers", False),
    ],
)
def test_experts_that_do_not_fit_are_refused_by_name(family: str, key: str, value: object) -> None:
    config, shapes = next((c, s) for c, s in CHECKPOINTS if c["model_type"] == family)
    config = {**config, key: value}
    source = MemorySource(config, {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()})
    with pytest.raises(CheckpointError, match=f"'{key}' is {value}"):
        lower(find(config, "config.json", declared=True), source, format="auto")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_value_lowers_or_is_refused(data: st.DataObject) -> None:
    original, shapes = data.draw(st.sampled_from(CHECKPOINTS))
    config = copy.deepcopy(original)
    place = config
    while True:
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    if data.draw(st.booleans()):
        place[key] = data.draw(values)
    else:
        del place[key]
    source = MemorySource(config, {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()})
    with contextlib.suppress(CheckpointError):
        lower(find(config, "config.json", declared=True), source, format=data.draw(st.sampled_from(["auto", "int4"])))
