"""Every running family against transformers (tests/golden/tiny_logits.npz), with controls that must fail."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_cases import CASES, POSITIONS, tokens

from legato.executor.native import isa_levels
from support.drive import LogitsExecutor, logits
from support.executors import EXECUTORS, native
from support.tiny_models import MemorySource, tiny_shapes, tiny_source

TOLERANCE = 1e-4  # of the logits' standard deviation
GOLDEN = Path(__file__).parents[1] / "golden" / "tiny_logits.npz"


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as file:
        return dict(file)


def error(executor: LogitsExecutor, name: str, golden: dict[str, np.ndarray], *, chunk: int | None = None) -> float:
    """Largest logit error, in standard deviations of transformers' logits."""
    expected = golden[name]
    return float(np.abs(logits(executor, tokens(name), chunk=chunk) - expected).max() / expected.std())


def test_the_golden_file_holds_these_cases(golden: dict[str, np.ndarray]) -> None:
    assert set(golden) == set(CASES)
    for name, values in golden.items():
        assert values.shape == (POSITIONS, CASES[name]["vocab_size"])
        assert values.std() >= 1


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", EXECUTORS)
def test_e04_e06_e07_e09_logits_equal_transformers(
    kind: str, name: str, golden: dict[str, np.ndarray], tmp_path: Path
) -> None:
    executor = EXECUTORS[kind](tiny_source(CASES[name]), tmp_path)
    assert error(executor, name, golden) <= TOLERANCE
    assert error(executor, name, golden, chunk=11) <= TOLERANCE


@pytest.mark.parametrize("isa", [name for name, reason in isa_levels().items() if reason is None])
@pytest.mark.parametrize("name", ["llama-bias", "mistral-odd-width", "qwen3"])
def test_every_instruction_set_level(name: str, isa: str, golden: dict[str, np.ndarray], tmp_path: Path) -> None:
    assert error(native(tiny_source(CASES[name]), tmp_path, isa=isa), name, golden) <= TOLERANCE


def changed(name: str, **changes: Any) -> MemorySource:
    """The case's weights under another config."""
    source = tiny_source(CASES[name])
    source.config = {**CASES[name], **changes}
    return source


def without_bias(name: str, *parts: str) -> MemorySource:
    """Biases of these parts set to zero."""
    source = tiny_source(CASES[name])
    for key, array in source.arrays.items():
        if key.endswith(".bias") and any(part in key for part in parts):
            source.arrays[key] = np.zeros_like(array)
    return source


def swapped_gate_and_up(name: str) -> MemorySource:
    source = tiny_source(CASES[name])
    for key in [key for key in source.arrays if "gate_proj" in key]:
        up = key.replace("gate_proj", "up_proj")
        source.arrays[key], source.arrays[up] = source.arrays[up], source.arrays[key]
    return source


def without_head_norm(name: str, part: str) -> MemorySource:
    source = tiny_source(CASES[name])
    for key, array in source.arrays.items():
        if part in key:
            source.arrays[key] = np.ones_like(array)
    return source


def interleaved_rope(name: str) -> MemorySource:
    """q and k rows in the order of GGUF's Llama files (pairs side by side), as if nobody had put them back."""
    source = tiny_source(CASES[name])
    dim = CASES[name].get("head_dim") or CASES[name]["hidden_size"] // CASES[name]["num_attention_heads"]
    for key, array in source.arrays.items():
        if key.endswith(("q_proj.weight", "k_proj.weight")):
            pairs = array.reshape(-1, 2, dim // 2, array.shape[1]).swapaxes(1, 2)
            source.arrays[key] = np.ascontiguousarray(pairs).reshape(array.shape)
    return source


def rope_scaling(name: str) -> dict[str, Any]:
    scaling: dict[str, Any] = CASES[name]["rope_scaling"]
    return scaling


CONTROLS: dict[str, tuple[str, Callable[[str], MemorySource]]] = {
    "other theta": ("llama", lambda n: changed(n, rope_theta=10100.0)),
    "no linear scaling": ("llama-linear", lambda n: changed(n, rope_scaling=None)),
    "llama3 factor 8 for 32": ("llama-llama3-32", lambda n: changed(n, rope_scaling=rope_scaling("llama-llama3-8"))),
    "no llama3 scaling": ("llama-llama3-8", lambda n: changed(n, rope_scaling=None)),
    "no yarn scaling": ("llama-yarn", lambda n: changed(n, rope_scaling=None)),
    "window + 1": ("mistral-window", lambda n: changed(n, sliding_window=9)),
    "window - 1": ("mistral-window", lambda n: changed(n, sliding_window=7)),
    "no window": ("qwen3-window", lambda n: changed(n, use_sliding_window=False)),
    "window a layer late": ("qwen2-window", lambda n: changed(n, max_window_layers=2)),
    "rope everywhere": ("smollm3", lambda n: changed(n, no_rope_layers=[1] * 5)),
    "dropped q bias": ("qwen2", lambda n: without_bias(n, "q_proj")),
    "dropped v bias": ("qwen2", lambda n: without_bias(n, "v_proj")),
    "dropped o bias": ("qwen3-window", lambda n: without_bias(n, "o_proj")),
    "dropped mlp bias": ("llama-bias", lambda n: without_bias(n, "down_proj")),
    "swapped gate and up": ("llama", swapped_gate_and_up),
    "swapped gate and up, biased": ("llama-bias", swapped_gate_and_up),
    "no q norm": ("qwen3", lambda n: without_head_norm(n, "q_norm")),
    "no k norm": ("qwen3", lambda n: without_head_norm(n, "k_norm")),
    "other eps": ("llama", lambda n: changed(n, rms_norm_eps=1e-3)),
    "other activation": ("llama-one-kv-head", lambda n: changed(n, hidden_act="gelu")),
    "no embedding multiplier": ("granite", lambda n: changed(n, embedding_multiplier=1.0)),
    "no attention multiplier": ("granite", lambda n: changed(n, attention_multiplier=0.25)),
    "no residual multiplier": ("granite", lambda n: changed(n, residual_multiplier=1.0)),
    "no logits scaling": ("granite", lambda n: changed(n, logits_scaling=1.0)),
    "other head": ("llama", lambda n: changed(n, tie_word_embeddings=True)),
    "interleaved rope": ("llama", interleaved_rope),
}  # fmt: skip


@pytest.mark.parametrize("control", CONTROLS)
def test_controls_fail(control: str, golden: dict[str, np.ndarray], tmp_path: Path) -> None:
    """A small mistake is well outside the tolerance, so the test above would see it."""
    name, make = CONTROLS[control]
    assert error(native(make(name), tmp_path), name, golden) > 10 * TOLERANCE


def test_every_tensor_matters(golden: dict[str, np.ndarray], tmp_path: Path) -> None:
    """Changing any one tensor by 10 % is seen."""
    name = "llama-bias"
    for key in tiny_shapes(CASES[name]):
        if ".layers.1." in key or ".layers." not in key:
            source = tiny_source(CASES[name])
            source.arrays[key] = source.arrays[key] * np.float32(1.1)
            assert error(native(source, tmp_path), name, golden) > 10 * TOLERANCE, key


@pytest.mark.parametrize("name", ["llama-bias", "qwen2", "granite"])
@pytest.mark.parametrize(("format", "dtype"), [("bf16", "F32"), ("int8", "F32"), ("auto", "Q8_0"), ("auto", "Q4_1")])
def test_e09_biases_count_in_every_format(format: str, dtype: str, name: str, tmp_path: Path) -> None:
    """Against fp32 on the same stored numbers: a format costs some accuracy, lost biases much more."""
    source = tiny_source(CASES[name], dtype=lambda name: dtype)
    exact = logits(native(source, tmp_path), tokens(name))
    kept = logits(native(source, tmp_path, format=format), tokens(name))
    for key in [key for key in source.arrays if key.endswith(".bias")]:
        source.arrays[key] = np.zeros_like(source.arrays[key])
    lost = logits(native(source, tmp_path, format=format), tokens(name))
    assert np.std(kept - exact) < 0.2 * np.std(lost - exact)
