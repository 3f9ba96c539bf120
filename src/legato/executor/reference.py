"""The reference executor: the same plans and steps as the native one, in numpy float32. Obvious and slow.

Weights are the checkpoint's exact values whatever format the plan asks for, and activations are float32 throughout,
so that what it computes is what the other executors are measured against.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from legato.build import plan as ops
from legato.build.plan import Op, Plan
from legato.core.errors import ConfigError
from legato.core.types import NO_BLOCK, BlockCopy, ExecutorInfo, OutputPurpose, SlotReset, StepPlan, StepResult
from legato.executor.again import with_rows
from legato.executor.disk_tier import DiskTier
from legato.executor.reference_weights import ACTS, Weights
from legato.sampling.reference import sample_row, top_logprobs
from legato.weights.source import TensorSource

__all__ = ["ReferenceExecutor"]

Floats = npt.NDArray[np.float32]

_NEUTRAL = SlotReset(-1, 0.0, 1.0, 0, 0.0, 0, 0, 1.0, 0.0, 0.0, -1, 0, (), (), ())


@dataclass
class _Slot:
    """What is installed in a sequence slot, and the tokens that the sequence has produced."""

    params: SlotReset = _NEUTRAL
    output: list[int] = field(default_factory=list)


class _Step:
    """One step's columns as arrays, and the buffers that its ops fill."""

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan
        self.tokens = np.asarray(plan.tokens)
        self.positions = np.asarray(plan.positions)
        self.out_rows = np.asarray(plan.out_rows)
        self.buffers: dict[str, Floats] = {}


class ReferenceExecutor:
    """An `Executor` over plain numpy arrays. One step at a time; `launch` computes it at once.

    plan: a verified plan. source: the checkpoint that it was lowered from; all weights are read here. block_size: KV
    slots per block. num_blocks: blocks per cache group. max_rows, max_seqs: the limits it reports and enforces.
    """

    def __init__(
        self, plan: Plan, source: TensorSource, *, block_size: int, num_blocks: int, max_rows: int, max_seqs: int
    ) -> None:
        self._plan = plan
        self._weights = Weights(plan, source)
        self._block_size = block_size
        self._slots = [_Slot() for _ in range(max_seqs)]
        shapes = [
            (group.num_layers, num_blocks * block_size, heads, dim)
            for group, heads, dim in zip(plan.groups, plan.kv_heads, plan.head_dims, strict=True)
        ]
        self._keys = [np.zeros(shape, np.float32) for shape in shapes]
        self._values = [np.zeros(shape, np.float32) for shape in shapes]
        self._info = ExecutorInfo(
            name="reference",
            cache_groups=tuple(
                replace(group, bytes_per_block=2 * 4 * group.num_layers * block_size * heads * dim)
                for group, heads, dim in zip(plan.groups, plan.kv_heads, plan.head_dims, strict=True)
            ),
            block_size=block_size,
            num_blocks=num_blocks,
            max_rows=max_rows,
            max_seqs=max_seqs,
            max_position=plan.max_position,
            vocab_size=plan.vocab,
            details={"weights": "f32", "kv_cache_dtype": "f32"},
        )
        self._disk: DiskTier | None = None
        self._result: StepResult | None = None
        self.logits: Floats = np.zeros((0, plan.vocab), np.float32)  # of the last step's output rows

    def info(self) -> ExecutorInfo:
        return self._info

    def launch(self, plan: StepPlan) -> None:
        """Compute the step. ConfigError for a plan that is beyond what `info` states."""
        self._check(plan)
        begin = perf_counter()
        lost = self._do_copies(plan.copies)
        for reset in plan.resets:
            self._slots[reset.slot] = _Slot(reset, list(reset.output))
        step = _Step(plan)
        for op in self._plan.ops:
            _OPS[type(op)](self, step, op)
        last = self._plan.ops[-1]
        assert isinstance(last, ops.Logits)
        self.logits = step.buffers[last.out]
        self._result = replace(self._finish(step, 1e3 * (perf_counter() - begin)), lost_copies=lost)

    def collect(self, step_id: int) -> StepResult:
        result, self._result = self._result, None
        if result is None or result.step_id != step_id:
            raise ValueError(f"step {step_id} was not launched")
        return result

    def sample_again(self, plan: StepPlan, result: StepResult, masks: Mapping[int, bytes]) -> StepResult:
        tokens, logprobs = array("i"), array("f")
        tops = []
        for i, mask in masks.items():
            self._slots[plan.out_params[i]].output.pop()
            token, logprob, top = self._sample(plan, i, mask)
            tokens.append(token)
            logprobs.append(logprob)
            tops.append(top)
        return with_rows(result, list(masks), tokens, logprobs, tops)

    def load_adapter(self, slot: int, path: str) -> None:
        raise ConfigError("adapters are not supported by the reference executor")

    def unload_adapter(self, slot: int) -> None:
        raise ConfigError("adapters are not supported by the reference executor")

    def close(self) -> None:
        self._weights.clear()
        if self._disk is not None:
            self._disk.close()
            self._disk = None

    def use_disk(self, disk: DiskTier) -> None:
        """Get a host tier, which this executor then owns. Before the first step, and before anybody asks for `info`."""
        self._disk = disk
        self._info = disk.told_by(self._info)

    def read_block(self, group: int, index: int) -> bytes:
        """The bytes of a block: keys, then values."""
        return b"".join(pool[:, self._slots_of(index)].tobytes() for pool in (self._keys[group], self._values[group]))

    def write_block(self, group: int, index: int, data: bytes) -> None:
        """Replace a block by bytes that `read_block` gave."""
        keys, values = self._keys[group], self._values[group]
        both = np.frombuffer(data, np.float32).reshape(2, keys.shape[0], self._block_size, *keys.shape[2:])
        keys[:, self._slots_of(index)], values[:, self._slots_of(index)] = both

    # ------------------------------------------------------------------------------------------ before and after

    def _check(self, plan: StepPlan) -> None:
        info = self._info
        if self._result is not None:
            raise ValueError(f"step {self._result.step_id} was not collected")
        if plan.num_rows > info.max_rows or any(slot >= info.max_seqs for slot in plan.seq_slots):
            raise ConfigError(f"step {plan.step_id} is larger than the executor was made for")
        if any(position >= info.max_position for position in plan.positions):
            raise ConfigError(f"step {plan.step_id} has a position beyond {info.max_position - 1}")
        slots = range(info.num_blocks * info.block_size)
        if any(slot not in slots for column in plan.kv_slots for slot in column):
            raise ConfigError(f"step {plan.step_id} has a row without a KV slot")
        if plan.parents or any(adapter >= 0 for adapter in plan.adapters):
            raise ConfigError("trees of drafts and adapters are not supported by the reference executor")
        if any(purpose not in (OutputPurpose.SAMPLE, OutputPurpose.PROMPT_LOGPROBS) for purpose in plan.out_purposes):
            raise ConfigError("the reference executor samples and scores prompts, no more")
        if plan.masks and not plan.out_masks:
            raise ConfigError("the masks of a step need rows that have one")
        if self._disk is None and any(copy.source_tier or copy.target_tier for copy in plan.copies):
            raise ConfigError("this executor has no host tier")

    def _slots_of(self, block: int) -> slice:
        return slice(block * self._block_size, (block + 1) * self._block_size)

    def _do_copies(self, copies: Sequence[BlockCopy]) -> tuple[int, ...]:
        """Returns the indices of those that could not be done."""
        if self._disk is not None:
            return self._disk.copy(copies, self)
        for copy in copies:
            self.write_block(copy.group, copy.target, self.read_block(copy.group, copy.source))
        return ()

    def _finish(self, step: _Step, milliseconds: float) -> StepResult:
        plan = step.plan
        faults = np.zeros(plan.num_rows, np.int8)
        faults[~np.all(np.isfinite(step.buffers["x"]), axis=1)] = 1
        faults[step.out_rows[~np.all(np.isfinite(self.logits), axis=1)]] = 1
        tokens, logprobs = array("i"), array("f")
        tops: list[tuple[tuple[int, float], ...]] = []
        for i, row in enumerate(plan.out_rows):
            token, logprob, top = -1, float("nan"), ()
            if not faults[row]:
                token, logprob, top = self._output(plan, i, row)
            tokens.append(token)
            logprobs.append(logprob)
            tops.append(top)
        return StepResult(
            step_id=plan.step_id,
            tokens=tokens,
            logprobs=logprobs,
            top_logprobs=tuple(tops) if any(tops) else (),
            faults=array("b", faults.tobytes()),
            times_ms={"compute": milliseconds},
        )

    def _output(self, plan: StepPlan, i: int, row: int) -> tuple[int, float, Any]:
        slot = self._slots[plan.out_params[i]]
        if plan.out_purposes[i] == OutputPurpose.PROMPT_LOGPROBS:
            known = self.logits[i][: slot.params.vocab_size or None]
            return -1, *top_logprobs(known, plan.out_targets[i], max(0, slot.params.num_prompt_logprobs))
        return self._sample(
            plan, i, plan.masks[plan.out_masks[i]] if plan.out_masks and plan.out_masks[i] >= 0 else None
        )

    def _sample(self, plan: StepPlan, i: int, mask: bytes | None) -> tuple[int, float, Any]:
        slot, position = self._slots[plan.out_params[i]], plan.positions[plan.out_rows[i]]
        sampled = sample_row(self.logits[i], slot.params, slot.output, position, mask)
        if sampled.token >= 0:
            slot.output.append(sampled.token)
        return sampled.token, sampled.logprob, sampled.top_logprobs

    # ------------------------------------------------------------------------------------------------------- ops

    def _embed(self, step: _Step, op: ops.Embed) -> None:
        step.buffers[op.out] = self._weights.matrix(op.table)[step.tokens] * np.float32(op.scale)

    def _norm(self, step: _Step, op: ops.Norm) -> None:
        x = step.buffers[op.x]
        bias = self._weights.vector(op.bias) if op.bias else None
        step.buffers[op.out] = _norm(x, self._weights.vector(op.weight), bias, op.norm, op.eps)

    def _linear(self, step: _Step, op: ops.Linear) -> None:
        y = self._project(step.buffers[op.x], op.weight, op.bias)
        if op.epilogue == "add":
            step.buffers[op.out] = step.buffers[op.out] + np.float32(op.scale) * y
        elif op.epilogue == "glu":
            gate, up = np.split(y, 2, axis=1)
            step.buffers[op.out] = ACTS[op.act](gate) * up
        elif op.column == 0:
            step.buffers[op.out] = ACTS[op.act](y)
        else:
            step.buffers[op.out] = np.concatenate([step.buffers[op.out][:, : op.column], ACTS[op.act](y)], axis=1)

    def _project(self, x: Floats, weight: str, bias: str | None) -> Floats:
        y: Floats = x @ self._weights.matrix(weight).T
        return y + self._weights.vector(bias) if bias else y

    def _heads_to_cache(self, step: _Step, op: ops.HeadsToCache) -> None:
        x = step.buffers[op.x]
        heads = x.reshape(len(x), -1, op.head_dim)
        q, k, v = np.split(heads, [op.heads, op.heads + op.kv_heads], axis=1)
        if op.q_norm:
            q = _norm(q, self._weights.vector(op.q_norm), None, "rms", op.eps)
        if op.k_norm:
            k = _norm(k, self._weights.vector(op.k_norm), None, "rms", op.eps)
        if op.rope is not None:
            q, k = (_rotate(part, step.positions, self._plan.ropes[op.rope]) for part in (q, k))
        step.buffers[op.out] = np.ascontiguousarray(q).reshape(len(x), -1)
        slots = np.asarray(step.plan.kv_slots[op.group])
        self._keys[op.group][op.layer, slots] = k
        self._values[op.group][op.layer, slots] = v

    def _attention(self, step: _Step, op: ops.Attention) -> None:
        """Row by row; arrays are (kv heads, query heads of each, ...), so that these share keys and values."""
        q = step.buffers[op.x].reshape(-1, op.kv_heads, op.heads // op.kv_heads, op.head_dim)
        out = np.zeros_like(q)
        offsets = step.plan.row_offsets
        for seq in range(step.plan.num_seqs):
            for row in range(offsets[seq], offsets[seq + 1]):
                slots = self._visible(step, op, seq, int(step.positions[row]))
                keys = self._keys[op.group][op.layer, slots].transpose(1, 2, 0)
                values = self._values[op.group][op.layer, slots].transpose(1, 0, 2)
                out[row] = _softmax(q[row] @ keys * np.float32(op.scale)) @ values
        step.buffers[op.out] = out.reshape(len(q), -1)

    def _visible(self, step: _Step, op: ops.Attention, seq: int, position: int) -> npt.NDArray[np.int64]:
        """KV slots of the positions that a row at `position` sees."""
        table = step.plan.block_tables[op.group]
        blocks = np.asarray(table.blocks[table.offsets[seq] : table.offsets[seq + 1]], np.int64)
        first = 0 if op.window is None else max(0, position - op.window + 1)
        seen = np.arange(first, position + 1)
        if (blocks[seen // self._block_size] == NO_BLOCK).any():
            raise ValueError(f"step {step.plan.step_id}: a visible block of sequence {seq} was freed")
        return blocks[seen // self._block_size] * self._block_size + seen % self._block_size

    def _select_rows(self, step: _Step, op: ops.SelectRows) -> None:
        step.buffers[op.out] = step.buffers[op.x][step.out_rows]

    def _logits(self, step: _Step, op: ops.Logits) -> None:
        step.buffers[op.out] = np.float32(op.scale) * self._project(step.buffers[op.x], op.weight, op.bias)


_OPS: dict[type[Op], Callable[[ReferenceExecutor, _Step, Any], None]] = {
    ops.Embed: ReferenceExecutor._embed,
    ops.Norm: ReferenceExecutor._norm,
    ops.Linear: ReferenceExecutor._linear,
    ops.HeadsToCache: ReferenceExecutor._heads_to_cache,
    ops.Attention: ReferenceExecutor._attention,
    ops.SelectRows: ReferenceExecutor._select_rows,
    ops.Logits: ReferenceExecutor._logits,
}


def _norm(x: Floats, weight: Floats, bias: Floats | None, norm: str, eps: float) -> Floats:
    if norm == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    y: Floats = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
    return y if bias is None else y + bias


def _rotate(heads: Floats, positions: npt.NDArray[np.int32], rope: ops.Rope) -> Floats:
    """Rotate the first `rope.dim` values of each head; heads is (rows, heads, head_dim)."""
    angles = positions[:, None].astype(np.float32) * np.asarray(rope.inv_freq, np.float32)
    cos = (np.cos(angles) * np.float32(rope.factor))[:, None]
    sin = (np.sin(angles) * np.float32(rope.factor))[:, None]
    first, second, rest = np.split(heads, [rope.dim // 2, rope.dim], axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def _softmax(scores: Floats) -> Floats:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out: Floats = weights / weights.sum(axis=-1, keepdims=True)
    return out
