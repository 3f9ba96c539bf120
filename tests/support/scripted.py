"""An executor without a model. It checks every plan against the contract, and answers from a script."""

import threading
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from legato.core.types import (
    DEVICE_TIER,
    HOST_TIER,
    NO_BLOCK,
    BlockCopy,
    CacheGroup,
    ExecutorInfo,
    OutputPurpose,
    SlotReset,
    StepPlan,
    StepResult,
)

__all__ = ["AnswerAll", "Emit", "ScriptedExecutor", "allowed_from", "answers", "full_group", "hashed", "window_group"]

# The token that follows `history` (prompt and output so far) under `params`. `seen`: what penalties may look at.
Emit = Callable[[Sequence[int], SlotReset, Sequence[int]], int]


def full_group(name: str = "full") -> CacheGroup:
    return CacheGroup(name, "full", None, num_layers=1, bytes_per_block=0)


def window_group(window: int) -> CacheGroup:
    return CacheGroup(f"window{window}", "window", window, num_layers=1, bytes_per_block=0)


def hashed(vocab_size: int) -> Emit:
    """A token that depends on all of the history, the seed, the choice, and on the output where a penalty is set."""

    def emit(history: Sequence[int], params: SlotReset, seen: Sequence[int]) -> int:
        key = f"{list(history)} {list(seen)} {params.seed} {params.choice} {params.temperature} {params.top_k}"
        return zlib.crc32(key.encode()) % vocab_size

    return emit


def answers(by_prompt: Mapping[tuple[int, ...], Sequence[int]], then: int = 0) -> Emit:
    """Fixed answers for fixed prompts; `then` after their end."""

    def emit(history: Sequence[int], params: SlotReset, seen: Sequence[int]) -> int:
        for prompt, answer in by_prompt.items():
            if tuple(history[: len(prompt)]) == prompt:
                done = len(history) - len(prompt)
                return answer[done] if done < len(answer) else then
        raise AssertionError(f"no answer for {list(history)}")

    return emit


class AnswerAll:
    """The same answer whatever the prompt; `then` after its end. Requests are told apart by seed and choice."""

    def __init__(self, answer: Sequence[int], then: int = 0) -> None:
        self._answer = answer
        self._then = then
        self._prompt_lengths: dict[tuple[int, int], int] = {}

    def __call__(self, history: Sequence[int], params: SlotReset, seen: Sequence[int]) -> int:
        done = len(history) - self._prompt_lengths.setdefault((params.seed, params.choice), len(history))
        return self._answer[done] if done < len(self._answer) else self._then


def allowed_from(mask: bytes, token: int, vocab_size: int) -> int:
    """`token` if the mask allows it, else the next that it allows, in a circle; -1 if it allows none."""
    order = (*range(token, vocab_size), *range(token)) if token >= 0 else ()
    return next((each for each in order if mask[each // 8] >> each % 8 & 1), -1)


class _Kv:
    """What the cache holds for one position: it depends on its token and all before. Equal ones are one object."""

    __slots__ = ("_next", "before", "token")

    def __init__(self, token: int, before: "_Kv | None") -> None:
        self.token = token
        self.before = before
        self._next: dict[int, _Kv] = {}

    def then(self, token: int) -> "_Kv":
        found = self._next.get(token)
        if found is None:
            found = self._next[token] = _Kv(token, self)
        return found


class _Slot:
    """What an executor keeps for a sequence slot."""

    def __init__(self, params: SlotReset) -> None:
        self.params = params
        self.history = array("i")  # tokens computed so far, those found in the cache included
        self.kv: list[_Kv] = []  # of each of them
        self.seen = array("i", [*params.prompt, *params.output])

    @property
    def has_penalties(self) -> bool:
        p = self.params
        return p.repetition_penalty != 1.0 or p.presence_penalty != 0.0 or p.frequency_penalty != 0.0


class ScriptedExecutor:
    """Implements `legato.core.types.Executor`. Knobs for tests:

    emit: the script. faulty(history) -> bool: flags the row whose token is the last of `history`.
    host_slots: of the host tier. lose(copy) -> bool: this copy fails. host: label and content of its slots.
    keeps_logits: rows can be sampled again. redraws: what is sampled with a mask is another token than without.
    gate: `collect` waits until it is set. failing_steps: `collect` raises for these step ids.
    repeats: a sequence may compute its last row again, as one does that has ended before the others of a padded batch.
    plans: every plan that was launched, for tests that look at them.
    """

    def __init__(
        self,
        *,
        groups: tuple[CacheGroup, ...] = (full_group(),),
        block_size: int = 16,
        num_blocks: int = 64,
        max_rows: int = 512,
        max_seqs: int = 64,
        max_position: int = 4096,
        vocab_size: int = 1000,
        chunk_align: int = 1,
        plans_in_flight: int = 1,
        emit: Emit | None = None,
        faulty: Callable[[Sequence[int]], bool] | None = None,
        memory: Mapping[str, int] = MappingProxyType({}),
        host_slots: int = 0,
        lose: Callable[[BlockCopy], bool] | None = None,
        repeats: bool = False,
        keeps_logits: bool = True,
        redraws: bool = False,
    ) -> None:
        self._info = ExecutorInfo(
            name="scripted",
            cache_groups=groups,
            block_size=block_size,
            num_blocks=num_blocks,
            max_rows=max_rows,
            max_seqs=max_seqs,
            max_position=max_position,
            vocab_size=vocab_size,
            chunk_align=chunk_align,
            plans_in_flight=plans_in_flight,
            host_slots=host_slots,
            memory=memory,
        )
        self.emit = emit or hashed(vocab_size)
        self.faulty = faulty
        self.lose = lose
        self._repeats = repeats
        self.keeps_logits = keeps_logits
        self._redraws = redraws
        self.host: dict[tuple[int, int], tuple[bytes, list[_Kv]]] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.failing_steps: set[int] = set()
        self.plans: list[StepPlan] = []
        self.closed = False
        self._slots: dict[int, _Slot] = {}
        self._results: dict[int, StepResult] = {}
        self._nothing = _Kv(-1, None)
        self._cache = [[self._nothing] * (num_blocks * block_size) for _ in groups]

    def info(self) -> ExecutorInfo:
        return self._info

    def launch(self, plan: StepPlan) -> None:
        assert len(self._results) < self._info.plans_in_flight, "more plans in flight than allowed"
        assert not self.plans or plan.step_id > self.plans[-1].step_id, "step ids ascend"
        self.plans.append(plan)
        for reset in plan.resets:
            assert 0 <= reset.slot < self._info.max_seqs
            assert reset.slot in plan.seq_slots, "a reset comes with the first rows of its sequence"
            self._slots[reset.slot] = _Slot(reset)
        self._check_columns(plan)
        self._check_blocks(plan)
        lost = [index for index, copy in enumerate(plan.copies) if not self._copied(copy)]
        wrong = {
            (copy.group, copy.target) for copy in (plan.copies[i] for i in lost) if copy.target_tier == DEVICE_TIER
        }
        faults = array("b", bytes(plan.num_rows))
        sampled: dict[int, int] = {}
        for index in range(plan.num_seqs):
            if any(_reads(plan, index, group, block) for group, block in wrong):  # whatever it gives, nobody may use it
                rows = range(plan.row_offsets[index], plan.row_offsets[index + 1])
                sampled |= {output: 7 for output, row in enumerate(plan.out_rows) if row in rows}
            else:
                self._run_sequence(plan, index, faults, sampled)
        self._results[plan.step_id] = replace(self._result(plan, faults, sampled), lost_copies=tuple(lost))

    def collect(self, step_id: int) -> StepResult:
        self.gate.wait()
        result = self._results.pop(step_id)
        if step_id in self.failing_steps:
            raise RuntimeError(f"step {step_id} failed as told")
        return result

    def sample_again(self, plan: StepPlan, result: StepResult, masks: Mapping[int, bytes]) -> StepResult:
        assert masks, "asked for nothing"
        assert plan is self.plans[-1], "logits are those of the last step"
        if not self.keeps_logits:
            return result
        tokens = result.tokens[:]
        for output, mask in masks.items():
            slot = self._slots[plan.out_params[output]]
            assert not slot.has_penalties, "the slot has seen the first token"
            tokens[output] = self._masked(mask, tokens[output])
        return replace(result, tokens=tokens)

    def load_adapter(self, slot: int, path: str) -> None:
        raise NotImplementedError

    def unload_adapter(self, slot: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True

    def _check_columns(self, plan: StepPlan) -> None:
        info = self._info
        assert 0 < plan.num_rows <= info.max_rows
        assert 0 < plan.num_seqs <= info.max_seqs
        assert len(plan.positions) == plan.num_rows
        assert len(set(plan.seq_slots)) == plan.num_seqs, "one entry per sequence slot"
        assert all(0 <= slot < info.max_seqs for slot in plan.seq_slots)
        assert all(0 <= token < info.vocab_size for token in plan.tokens)
        assert all(0 <= position < info.max_position for position in plan.positions)
        assert all(slot >= 0 for slots in plan.kv_slots for slot in slots)
        assert list(plan.row_offsets) == sorted(set(plan.row_offsets)), "every sequence has rows"
        assert (plan.row_offsets[0], plan.row_offsets[-1]) == (0, plan.num_rows)
        assert len(plan.row_offsets) == plan.num_seqs + 1
        assert len(plan.kv_slots) == len(plan.block_tables) == len(info.cache_groups)
        assert all(len(slots) == plan.num_rows for slots in plan.kv_slots)
        assert list(plan.out_rows) == sorted(set(plan.out_rows))
        assert len(plan.out_purposes) == len(plan.out_params) == len(plan.out_rows)
        assert set(plan.out_purposes) <= {OutputPurpose.SAMPLE, OutputPurpose.PROMPT_LOGPROBS}
        scores = OutputPurpose.PROMPT_LOGPROBS in plan.out_purposes
        assert len(plan.out_targets) == (len(plan.out_rows) if scores else 0)
        assert not plan.parents
        assert len(plan.out_masks) == (len(plan.out_rows) if plan.masks else 0)
        assert all(len(mask) == (info.vocab_size + 7) // 8 for mask in plan.masks)
        assert [mask for mask in plan.out_masks if mask >= 0] == list(range(len(plan.masks)))
        typecodes = [c.typecode for c in (plan.tokens, plan.positions, plan.row_offsets, plan.seq_slots, plan.out_rows)]
        assert typecodes == ["i"] * 5
        assert all(slots.typecode == "q" for slots in plan.kv_slots)
        assert plan.out_purposes.typecode == "b"

    def _check_blocks(self, plan: StepPlan) -> None:
        for table in plan.block_tables:
            assert len(table.offsets) == plan.num_seqs + 1
            assert (table.offsets[0], table.offsets[-1]) == (0, len(table.blocks))
            assert all(NO_BLOCK <= block < self._info.num_blocks for block in table.blocks)
        for slots, table in zip(plan.kv_slots, plan.block_tables, strict=True):
            for block in {slot // self._info.block_size for slot in slots}:
                assert table.blocks.count(block) == 1, "a block is written that is shared by two sequences"

    def _copied(self, copy: BlockCopy) -> bool:
        """Does a copy, unless it is to be lost. A block comes back only from where, and under which label, it went."""
        assert {copy.source_tier, copy.target_tier} == {DEVICE_TIER, HOST_TIER}
        if self.lose is not None and self.lose(copy):
            return False
        slot, block = (copy.target, copy.source) if copy.target_tier == HOST_TIER else (copy.source, copy.target)
        assert 0 <= slot < self._info.host_slots
        assert 0 <= block < self._info.num_blocks
        slots = slice(block * self._info.block_size, (block + 1) * self._info.block_size)
        if copy.target_tier == HOST_TIER:
            self.host[copy.group, slot] = copy.label, self._cache[copy.group][slots]
        else:
            label, self._cache[copy.group][slots] = self.host[copy.group, slot]
            assert label == copy.label
        return True

    def _run_sequence(self, plan: StepPlan, index: int, faults: "array[int]", sampled: dict[int, int]) -> None:
        slot = self._slots[plan.seq_slots[index]]
        begin, end = plan.row_offsets[index], plan.row_offsets[index + 1]
        rows = list(range(begin, end))
        if not slot.history:
            self._find_computed(plan, index, plan.positions[begin], slot)
        if (plan.masks or self._repeats) and slot.history and plan.positions[begin] == len(slot.history) - 1:
            slot.kv.pop()  # the last row once more; with masks, since the token sampled for it did not fit a grammar
            assert slot.history.pop() == plan.tokens[begin]
        first = len(slot.history)
        for row in rows:
            assert plan.positions[row] == len(slot.history), "positions go on from what was computed"
            slot.history.append(plan.tokens[row])
            slot.kv.append((slot.kv[-1] if slot.kv else self._nothing).then(plan.tokens[row]))
            faults[row] = bool(self.faulty and self.faulty(slot.history))
        for group in range(len(self._cache)):
            self._write_and_read(plan, index, group, rows, first, slot.kv)
        outputs = [o for o, row in enumerate(plan.out_rows) if begin <= row < end]
        for o in [o for o in outputs if plan.out_purposes[o] == OutputPurpose.PROMPT_LOGPROBS]:
            outputs.remove(o)
            assert plan.out_params[o] == plan.seq_slots[index]
            assert plan.out_rows[o] == rows[-1] or plan.out_targets[o] == plan.tokens[plan.out_rows[o] + 1]
            sampled[o] = -1
        if outputs:
            assert [plan.out_rows[o] for o in outputs] == rows[-1:], "only the last row of a sequence is sampled"
            assert plan.out_params[outputs[0]] == plan.seq_slots[index]
            token = -1 if faults[rows[-1]] else self.emit(slot.history, slot.params, slot.seen)
            if plan.masks and plan.out_masks[outputs[0]] >= 0:
                token = self._masked(plan.masks[plan.out_masks[outputs[0]]], token)
            sampled[outputs[0]] = token
            if slot.has_penalties:
                slot.seen.append(token)

    def _masked(self, mask: bytes, token: int) -> int:
        """The token of a row with a mask; token: the one without."""
        size = self._info.vocab_size
        return allowed_from(mask, (token * 5 + 3) % size if self._redraws and token >= 0 else token, size)

    def _find_computed(self, plan: StepPlan, index: int, position: int, slot: _Slot) -> None:
        """A sequence begins at `position`: what comes before is in the cache, found by the widest group."""
        if position == 0:
            return
        size, groups = self._info.block_size, self._info.cache_groups
        widest = max(range(len(groups)), key=lambda g: groups[g].window or self._info.max_position)
        table = plan.block_tables[widest]
        block = table.blocks[table.offsets[index] + (position - 1) // size]
        assert block != NO_BLOCK, "a sequence begins behind what is computed"
        kv: _Kv | None = self._cache[widest][block * size + (position - 1) % size]
        while kv is not None and kv is not self._nothing:
            slot.kv.append(kv)
            kv = kv.before
        slot.kv.reverse()
        slot.history.extend(kv.token for kv in slot.kv)
        assert len(slot.history) == position, "a sequence begins with blocks of another position"

    def _write_and_read(
        self, plan: StepPlan, index: int, group: int, rows: list[int], first: int, history: list[_Kv]
    ) -> None:
        """Write what the rows compute to the cache, then find there, through the table, all that they attend to."""
        size, cache, window = self._info.block_size, self._cache[group], self._info.cache_groups[group].window
        table = plan.block_tables[group]
        blocks = table.blocks[table.offsets[index] : table.offsets[index + 1]]
        assert len(blocks) * size >= len(history), "the table covers all positions"
        for row in rows:
            position = plan.positions[row]
            slot = plan.kv_slots[group][row]
            assert slot == blocks[position // size] * size + position % size, "KV slots follow from the table"
            cache[slot] = history[position]
        seen_from = 0 if window is None else max(0, first - window + 1)
        for i, block in enumerate(blocks):
            low, high = max(seen_from, i * size), min(len(history), (i + 1) * size)
            if low >= high:
                continue
            assert block != NO_BLOCK, "a visible position has no block"
            shift = (block - i) * size
            assert cache[low + shift : high + shift] == history[low:high], "another sequence wrote to this block"

    def _result(self, plan: StepPlan, faults: "array[int]", sampled: dict[int, int]) -> StepResult:
        assert sorted(sampled) == list(range(len(plan.out_rows)))
        logprobs, tops = array("f"), []
        for output, slot in enumerate(plan.out_params):
            params, token = self._slots[slot].params, sampled[output]
            wanted, others = params.num_logprobs, params.logprob_token_ids
            if plan.out_purposes[output] == OutputPurpose.PROMPT_LOGPROBS:
                wanted, others, token = params.num_prompt_logprobs, (), plan.out_targets[output]
            logprobs.append(float("nan") if wanted < 0 else -0.125 * (token % 8))
            tops.append(tuple((rank, -0.125 * (rank % 8)) for rank in (*range(max(wanted, 0)), *others)))
        return StepResult(
            step_id=plan.step_id,
            tokens=array("i", (sampled[output] for output in range(len(plan.out_rows)))),
            logprobs=logprobs,
            top_logprobs=tuple(tops) if any(tops) else (),
            faults=faults,
        )


def _reads(plan: StepPlan, index: int, group: int, block: int) -> bool:
    """Whether a sequence of the plan has this block in its table."""
    table = plan.block_tables[group]
    return block in table.blocks[table.offsets[index] : table.offsets[index + 1]]
