"""Drives any executor with hand-made steps, one sequence at a time, to get logits or greedy tokens out of it."""

from array import array
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from legato.core.types import BlockTable, ExecutorInfo, SlotReset, StepPlan, StepResult

GREEDY = SlotReset(0, 0.0, 1.0, 0, 0.0, 0, 0, 1.0, 0.0, 0.0, -1, 0, (), (), ())


class LogitsExecutor(Protocol):
    """An Executor that also shows the raw logits of its last step: float32 (output rows, vocab)."""

    @property
    def logits(self) -> np.ndarray: ...
    def info(self) -> ExecutorInfo: ...
    def launch(self, plan: StepPlan) -> None: ...
    def collect(self, step_id: int) -> StepResult: ...


def step(
    info: ExecutorInfo,
    tokens: Sequence[int],
    begin: int,
    *,
    step_id: int = 0,
    outputs: Sequence[int] | None = None,
    reset: SlotReset | None = None,
    first_block: int = 0,
) -> StepPlan:
    """Tokens at positions begin, begin + 1, ... of one sequence, whose blocks lie scattered from `first_block` on.

    outputs: rows that give logits; default: all.
    """
    size, end = info.block_size, begin + len(tokens)
    blocks = [(first_block + 3 + 7 * i) % info.num_blocks for i in range(-(-end // size))]
    assert len(set(blocks)) == len(blocks), "num_blocks must not be a multiple of 7, and large enough"
    slots = array("q", (blocks[p // size] * size + p % size for p in range(begin, end)))
    rows = list(range(len(tokens)) if outputs is None else outputs)
    groups = len(info.cache_groups)
    return StepPlan(
        step_id=step_id,
        tokens=array("i", tokens),
        positions=array("i", range(begin, end)),
        kv_slots=(slots,) * groups,
        parents=array("i"),
        row_offsets=array("i", [0, len(tokens)]),
        seq_slots=array("i", [0]),
        block_tables=(BlockTable(array("i", [0, len(blocks)]), array("i", blocks)),) * groups,
        adapters=array("i"),
        out_rows=array("i", rows),
        out_purposes=array("b", [0] * len(rows)),
        out_params=array("i", [0] * len(rows)),
        out_masks=array("i"),
        resets=() if reset is None else (reset,),
    )


def run(executor: LogitsExecutor, plan: StepPlan) -> StepResult:
    executor.launch(plan)
    return executor.collect(plan.step_id)


def logits(executor: LogitsExecutor, tokens: Sequence[int], *, chunk: int | None = None) -> np.ndarray:
    """float32 (len(tokens), vocab): logits after each token of a sequence computed in chunks."""
    info = executor.info()
    chunk = chunk or info.max_rows
    parts = []
    for begin in range(0, len(tokens), chunk):
        run(executor, step(info, tokens[begin : begin + chunk], begin, reset=GREEDY if begin == 0 else None))
        parts.append(np.array(executor.logits))
    return np.concatenate(parts)


def greedy(executor: LogitsExecutor, prompt: Sequence[int], count: int) -> list[int]:
    """The `count` greedy tokens that follow `prompt`."""
    info, pending, begin, out = executor.info(), list(prompt), 0, []
    for _ in range(count):
        reset = GREEDY if begin == 0 else None
        result = run(executor, step(info, pending, begin, outputs=[len(pending) - 1], reset=reset))
        begin += len(pending)
        pending = [result.tokens[0]]
        out += pending
    return out
