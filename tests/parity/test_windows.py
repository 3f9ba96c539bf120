"""How far a sliding window reaches, in every phase and executor. transformers: kv_idx > q_idx - sliding_window."""

from pathlib import Path

import numpy as np
import pytest

from support.drive import logits
from support.executors import EXECUTORS
from support.tiny_models import tiny_config, tiny_source

TOKENS = [int(t) for t in np.random.RandomState(5).randint(0, 80, 50)]
WINDOW = 8


@pytest.mark.parametrize("kind", EXECUTORS)
@pytest.mark.parametrize("chunk", [50, 7, 1], ids=["prefill", "chunks", "decode"])
def test_e03_a_window_reaches_exactly_its_width(kind: str, chunk: int, tmp_path: Path) -> None:
    """With one layer, the last row sees itself and WINDOW - 1 rows before it; rows further back change nothing."""
    source = tiny_source(tiny_config("mistral", num_hidden_layers=1, sliding_window=WINDOW))
    executor = EXECUTORS[kind](source, tmp_path)
    before = logits(executor, TOKENS, chunk=chunk)[-1]
    for back in (WINDOW - 1, WINDOW, WINDOW + 1):
        changed = list(TOKENS)
        changed[-1 - back] = (changed[-1 - back] + 1) % 80
        difference = np.abs(before - logits(executor, changed, chunk=chunk)[-1]).max()
        assert difference > 1e-3 if back < WINDOW else difference == 0, back
