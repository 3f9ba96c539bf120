"""Drives any executor with hand-made steps, one sequence at a time, to get logits or greedy tokens out of it."""

from __future__ import annotations  # array[Any] cannot be evaluated before Python 3.12

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import gcd
from typing import Any, Protocol

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
    part: tuple[int, int] | None = None,
) -> StepPlan:
    """Tokens at positions begin, begin + 1, ... of one sequence whose blocks lie scattered.

    outputs: rows that give logits; default: all. part: (first, count) of the blocks it may have; default: all.
    """
    size, end = info.block_size, begin + len(tokens)
    first, count = part or (0, info.num_blocks)
    stride = next(n for n in (7, 5, 3, 1) if gcd(n, count) == 1)
    blocks = [first + (2 + stride * i) % count for i in range(-(-end // size))]
    assert len(blocks) <= count, "the sequence needs more blocks"
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
    chunk = chunk or min(info.max_rows, info.max_seqs)  # no executor gives more logits than that in a step
    parts = []
    for begin in range(0, len(tokens), chunk):
        run(executor, step(info, tokens[begin : begin + chunk], begin, reset=GREEDY if begin == 0 else None))
        parts.append(np.array(executor.logits))
    return np.concatenate(parts)


def join(*plans: StepPlan) -> StepPlan:
    """Several sequences in one step: the i-th plan's sequence in sequence slot i."""
    first = plans[0]
    rows, blocks, groups = [0], [0], len(first.kv_slots)
    for plan in plans:
        rows.append(rows[-1] + plan.num_rows)
        blocks.append(blocks[-1] + len(plan.block_tables[0].blocks))
    tables = tuple(
        BlockTable(array("i", blocks), _chain(plan.block_tables[g].blocks for plan in plans)) for g in range(groups)
    )
    return replace(
        first,
        tokens=_chain(plan.tokens for plan in plans),
        positions=_chain(plan.positions for plan in plans),
        kv_slots=tuple(_chain(plan.kv_slots[g] for plan in plans) for g in range(groups)),
        row_offsets=array("i", rows),
        seq_slots=array("i", range(len(plans))),
        block_tables=tables,
        out_rows=array("i", [row + rows[i] for i, plan in enumerate(plans) for row in plan.out_rows]),
        out_purposes=_chain(plan.out_purposes for plan in plans),
        out_params=array("i", [i for i, plan in enumerate(plans) for _ in plan.out_rows]),
        resets=tuple(replace(reset, slot=i) for i, plan in enumerate(plans) for reset in plan.resets),
    )


def _chain(parts: Iterable[array[Any]]) -> array[Any]:
    first, *rest = parts
    result = first[:]
    for part in rest:
        result.extend(part)
    return result


def greedy_together(executor: LogitsExecutor, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """The `count` greedy tokens that follow each prompt, all prompts decoded in the same steps."""
    info = executor.info()
    share = info.num_blocks // len(prompts)
    out: list[list[int]] = [[] for _ in prompts]
    for i, prompt in enumerate(prompts):  # prompts one by one: together they may be longer than a step
        plan = step(info, prompt, 0, outputs=[len(prompt) - 1], reset=replace(GREEDY, slot=i), part=(i * share, share))
        slots, params = array("i", [i]), array("i", [i])
        out[i].append(run(executor, replace(plan, seq_slots=slots, out_params=params)).tokens[0])
    for n in range(1, count):
        plans = [
            step(info, [out[i][-1]], len(prompt) + n - 1, part=(i * share, share)) for i, prompt in enumerate(prompts)
        ]
        for tokens, token in zip(out, run(executor, join(*plans)).tokens, strict=True):
            tokens.append(token)
    return out


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
