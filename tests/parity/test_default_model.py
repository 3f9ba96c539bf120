"""The default model against transformers (tests/golden/default_model.npz), and its formats against its fp32 path."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from bars import BARS, windows
from prompts import GREEDY_TOKENS

from legato.bench.quality import measure
from legato.executor.native import NativeExecutor
from legato.weights.cache_dir import default_cache_dir
from legato.weights.open import open_checkpoint
from legato.weights.source import TensorSource
from support.drive import LogitsExecutor, greedy_together, logits
from support.executors import native, reference

GOLDEN = Path(__file__).parents[1] / "golden" / "default_model.npz"
LOGIT_ERROR = 1e-3
SMALLEST_GAP = 1e-3  # where the two best logits are closer, either token is right
WINDOWS = slice(None, None, 5)  # one alone moves by a point with any rounding; all are in check_quality.py


@pytest.fixture(scope="module")
def source() -> Iterator[TensorSource]:
    with open_checkpoint("", revision=None, cache_dir=default_cache_dir()) as checkpoint:
        yield checkpoint.source


@pytest.fixture(scope="module")
def fp32(source: TensorSource, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeExecutor]:
    executor = native(source, tmp_path_factory.mktemp("fp32"), rows=256, blocks=400, threads=2)
    yield executor
    executor.close()
    Path(executor.info().details["engine_file"]).unlink()


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as file:
        return dict(file)


def prompts(golden: dict[str, np.ndarray]) -> list[list[int]]:
    ends = np.cumsum(golden["lengths"])
    return [[int(t) for t in part] for part in np.split(golden["prompts"], ends[:-1])]


def logit_errors(executor: LogitsExecutor, golden: dict[str, np.ndarray]) -> Iterator[float]:
    for name, expected in golden.items():
        if name.startswith("logits_"):
            i = int(name.removeprefix("logits_"))
            sequence = prompts(golden)[i] + [int(t) for t in golden["tokens"][i][:40]]
            own = logits(executor, sequence)[-len(expected) :, ::16]
            yield float(np.abs(own - expected).max())


def test_fp32_logits_of_the_native_executor(fp32: NativeExecutor, golden: dict[str, np.ndarray]) -> None:
    errors = list(logit_errors(fp32, golden))
    assert len(errors) == 4
    assert max(errors) <= LOGIT_ERROR


def test_fp32_logits_of_the_reference_executor(
    source: TensorSource, golden: dict[str, np.ndarray], tmp_path: Path
) -> None:
    assert next(logit_errors(reference(source, tmp_path, rows=256, blocks=16), golden)) <= LOGIT_ERROR


def test_greedy_tokens(fp32: NativeExecutor, golden: dict[str, np.ndarray]) -> None:
    """20 prompts, 200 tokens each, decoded together: equal up to the first near tie."""
    own = np.array(greedy_together(fp32, prompts(golden), GREEDY_TOKENS))
    assert own.shape == golden["tokens"].shape == (20, GREEDY_TOKENS)
    compared = 0
    for i, gaps in enumerate(golden["gaps"]):
        close = np.flatnonzero(gaps < SMALLEST_GAP)
        end = int(close[0]) if len(close) else GREEDY_TOKENS
        assert own[i, :end].tolist() == golden["tokens"][i, :end].tolist(), f"prompt {i}"
        compared += end
    assert compared > 3000


def test_formats_stay_close_to_fp32(fp32: NativeExecutor, source: TensorSource, tmp_path: Path) -> None:
    others = {
        format: native(source, tmp_path, format=format, kv_cache_dtype="bf16", rows=256, blocks=80, threads=2)
        for format in BARS
    }
    result = measure(fp32, others, windows()[WINDOWS])
    for format, bar in BARS.items():
        assert bar.holds(result[format]), (format, result[format])
        assert result[format].kl > 1e-5, f"{format} is not that format"
