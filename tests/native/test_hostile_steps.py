"""Steps that are wrong in one column are refused by its name, and change nothing."""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from legato.core.types import NO_BLOCK, BlockCopy, BlockTable
from legato.executor.native import NativeExecutor
from support.drive import GREEDY, run, step
from support.tiny_engines import open_native, tiny_engine


@pytest.fixture
def tiny(tmp_path: Path) -> NativeExecutor:
    return open_native(tiny_engine(tmp_path / "tiny.legato"), threads=2)


def ints(*values: int) -> "array[int]":
    return array("i", values)


def table(offsets: Sequence[int], blocks: Sequence[int]) -> dict[str, Any]:
    return {"block_tables": (BlockTable(ints(*offsets), ints(*blocks)),)}


# Three rows of one sequence at positions 15 to 17, so two blocks, 2 and 9; each entry spoils one column.
HOSTILE: list[tuple[str, dict[str, Any]]] = [
    ("tokens", {"tokens": ints(1, 2, 80)}),
    ("tokens", {"tokens": ints(1, -1, 2)}),
    ("tokens", {"tokens": ints()}),
    ("tokens", {"tokens": ints(*range(65))}),
    ("tokens", {"tokens": array("q", [1, 2, 3])}),
    ("tokens", {"tokens": [1, 2, 3]}),
    ("positions", {"positions": ints(15, 16)}),
    ("positions", {"positions": ints(15, 16, 256)}),
    ("positions", {"positions": ints(-1, 0, 1)}),
    ("positions", {"positions": ints(15, 17, 16)}),
    ("positions", {"positions": ints(15, 15, 16)}),
    ("kv_slots", {"kv_slots": ()}),
    ("kv_slots", {"kv_slots": (array("q", [47, 144]),)}),
    ("kv_slots", {"kv_slots": (array("q", [47, 144, 60 * 16]),)}),
    ("kv_slots", {"kv_slots": (array("q", [47, 144, -1]),)}),
    ("kv_slots", {"kv_slots": (array("q", [47, 144, 146]),)}),
    ("kv_slots", {"kv_slots": (array("q", [47, 145, 144]),)}),
    ("kv_slots", {"kv_slots": (array("q", [63, 144, 145]),)}),
    ("kv_slots", {"kv_slots": (array("q", [47, 48, 49]),)}),
    ("parents", {"parents": ints(0, 0, 1)}),
    ("row_offsets", {"row_offsets": ints(0, 2)}),
    ("row_offsets", {"row_offsets": ints(1, 3)}),
    ("row_offsets", {"row_offsets": ints(0)}),
    ("row_offsets", {"row_offsets": ints(0, 5, 3), "seq_slots": ints(0, 1)}),
    ("seq_slots", {"seq_slots": ints()}),
    ("seq_slots", {"seq_slots": ints(64)}),
    ("seq_slots", {"seq_slots": ints(-1)}),
    ("seq_slots", {"seq_slots": ints(3, 3), "row_offsets": ints(0, 1, 3)}),
    ("block_tables", {"block_tables": ()}),
    ("block_tables", table([0, 1], [0])),
    ("block_tables", table([0, 2], [0, 60])),
    ("block_tables", table([0, 2], [0, NO_BLOCK])),
    ("block_tables", table([0, 2], [NO_BLOCK, 0])),
    ("block_tables", table([0, 3], [0, 1])),
    ("block_tables", table([0, 1, 2], [0, 1])),
    ("adapters", {"adapters": ints(0)}),
    ("adapters", {"adapters": ints(-1, -1)}),
    ("out_rows", {"out_rows": ints(3)}),
    ("out_rows", {"out_rows": ints(-1)}),
    ("out_rows", {"out_rows": ints(2, 1), "out_purposes": array("b", [0, 0]), "out_params": ints(0, 0)}),
    ("out_rows", {"out_rows": ints(1, 1), "out_purposes": array("b", [0, 0]), "out_params": ints(0, 0)}),
    ("out_purposes", {"out_purposes": array("b", [1])}),
    ("out_purposes", {"out_purposes": array("b")}),
    ("out_purposes", {"out_purposes": array("b", [3])}),
    ("out_targets", {"out_purposes": array("b", [2])}),
    ("out_targets", {"out_purposes": array("b", [2]), "out_targets": ints(80)}),
    ("out_targets", {"out_purposes": array("b", [2]), "out_targets": ints(-1)}),
    ("out_targets", {"out_targets": ints(1, 1)}),
    ("out_params", {"out_params": ints(64)}),
    ("out_params", {"out_params": ints()}),
    ("out_masks", {"out_masks": ints(0)}),
    ("out_masks", {"out_masks": ints(-1, -1)}),
    ("masks", {"out_masks": ints(0), "masks": (bytes(9),)}),
    ("masks", {"masks": (bytes(10),)}),
    ("resets", {"resets": (replace(GREEDY, slot=64),)}),
    ("resets", {"resets": (replace(GREEDY, temperature=-1.0),)}),
    ("top_k", {"resets": (replace(GREEDY, top_k="many"),)}),
    ("step_id", {"step_id": None}),
    ("resets", {"resets": (replace(GREEDY, top_p=float("nan")),)}),
    ("resets", {"resets": (replace(GREEDY, num_logprobs=81),)}),
    ("resets", {"resets": (replace(GREEDY, end_token_ids=(80,)),)}),
    ("resets", {"resets": (replace(GREEDY, output=(-1,)),)}),
    ("resets", {"resets": (replace(GREEDY, bias_token_ids=(80,), bias_values=(1.0,)),)}),
    ("resets", {"resets": (replace(GREEDY, bias_token_ids=(1, 2), bias_values=(1.0,)),)}),
    ("resets", {"resets": (replace(GREEDY, bias_token_ids=(1,), bias_values=(float("nan"),)),)}),
    ("bias_values", {"resets": (replace(GREEDY, bias_token_ids=(1,), bias_values=("x",)),)}),
    ("resets", {"resets": (replace(GREEDY, allowed_token_ids=(-1,)),)}),
    ("resets", {"resets": (replace(GREEDY, logprob_token_ids=(80,)),)}),
    ("resets", {"resets": (replace(GREEDY, bad_words=((1, 80),)),)}),
    ("resets", {"resets": (replace(GREEDY, bad_words=((),)),)}),
    ("bad_words", {"resets": (replace(GREEDY, bad_words=(1,)),)}),
    ("resets", {"resets": (replace(GREEDY, num_prompt_logprobs=81),)}),
    ("resets", {"resets": (replace(GREEDY, vocab_size=81),)}),
    ("resets", {"resets": (replace(GREEDY, vocab_size=3, num_logprobs=4),)}),
    ("resets", {"resets": (replace(GREEDY, vocab_size=3, num_prompt_logprobs=4),)}),
    ("copies", {"copies": (BlockCopy(1, 0, 0, 0, 1),)}),
    ("copies", {"copies": (BlockCopy(0, 1, 0, 0, 1),)}),
    ("copies", {"copies": (BlockCopy(0, 0, 60, 0, 1),)}),
    ("copies", {"copies": (BlockCopy(0, 0, 0, 0, -1),)}),
]


def test_hostile_steps_are_refused_by_column(tiny: NativeExecutor) -> None:
    good = step(tiny.info(), [1, 2, 3], 15, outputs=[2], reset=GREEDY)
    want = run(tiny, good)
    for column, changes in HOSTILE:
        with pytest.raises((ValueError, TypeError), match=f"step plan: {column}: "):
            tiny.launch(replace(good, **changes))
    assert run(tiny, good).tokens == want.tokens
