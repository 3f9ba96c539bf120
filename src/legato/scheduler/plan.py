"""Choose the rows of a step, and write them down as a StepPlan."""

from array import array
from typing import NamedTuple

from legato.cache.block_tables import KvBlocks
from legato.cache.prefix import Prefix
from legato.core.types import BlockTable, OutputPurpose, SlotReset, StepPlan
from legato.sampling.params import slot_reset
from legato.scheduler.ledger import Ledger, Limits
from legato.scheduler.preempt import take_blocks
from legato.scheduler.state import Sequence, State
from legato.scheduler.step_time import StepBudget

__all__ = ["LEAST_ROWS", "Entry", "choose_rows", "write_plan"]

LEAST_ROWS = 16  # of the first in line, whatever a step's time: a prompt of n tokens is behind n / 16 steps at most

_NONE = range(0)
_PAD = array("i", [0])  # the token of a row that has none


class Entry(NamedTuple):
    """The part of one sequence in a step."""

    sequence: Sequence
    run: int  # of the sequence when this was planned; another value later: the result is stale
    start: int  # position of the first row
    first_row: int
    num_rows: int
    output: int  # index of the output row that is sampled, -1 = none
    scored: range  # indices of the output rows that score the prompt


class Share(NamedTuple):
    """Rows given to a sequence, at the positions that follow what is computed of it."""

    sequence: Sequence
    num_rows: int
    pads: bool = False  # they are computed for nobody: a prompt's padding, or a place whose sequence has ended


def choose_rows(ledger: Ledger) -> list[Share]:
    """Split the rows of a step among the running sequences, and take the blocks for them.

    A sequence is owed num_tokens - num_computed rows, whatever the reason. One that is owed a single row (it decodes)
    always gets it; the rest of the step goes to the others in order of service, a chunk each. There is always room for
    a chunk (see Limits.max_places), and a few rows whatever time they take (`_chunk`), so the first in line gets on in
    every step, beside any number of decodes. One that has no rows yet waits while another, before it, computes what it
    would begin with (`Ledger.follows`). Padding of a prompt comes before it, in steps of its own.
    """
    running, limits, blocks, pads = ledger.running, ledger.limits, ledger.blocks, ledger.policy.pads
    all_owed = [s.num_padding + s.num_tokens - s.num_computed for s in running]
    room = limits.max_rows - all_owed.count(1)
    budget = _time_beside(ledger, all_owed) if max(all_owed, default=0) > 1 else None
    if pads:
        room -= len(ledger.held)
    any_new = any(s.wants_reset for s in running)
    under_way: set[Prefix] = set()
    shares: list[Share] = []
    index = 0
    while index < len(running):  # take_blocks removes from the end of the list
        sequence, decodes = running[index], all_owed[index] <= 1
        index += 1
        if sequence.wants_reset and not decodes and ledger.follows(sequence, under_way):
            continue
        computed = sequence.num_computed
        padding = sequence.num_padding
        owed = padding + sequence.num_tokens - computed
        rows = owed if decodes else _chunk(computed, owed, room, limits, budget)
        if padding:
            rows = min(rows, padding - computed)
        if rows > 0:
            if blocks.windowed:
                blocks.drop_behind_windows(sequence.tables, computed)
            if not take_blocks(ledger, sequence, computed + rows):
                break
            if sequence.wants_reset:
                ledger.begin(sequence)
            if any_new:
                under_way.update(ledger.filled(sequence, rows))
            if not decodes:
                room -= rows
                if budget is not None:
                    budget.spend(computed, rows)
            shares.append(Share(sequence, rows, padding > 0))
    if pads:
        shares += _held_places(ledger)
    return shares


def _time_beside(ledger: Ledger, all_owed: list[int]) -> StepBudget | None:
    """The time for chunks beside the running sequences that decode; None: there is no bound."""
    limits = ledger.limits
    decodes = [s.num_computed for s, owed in zip(ledger.running, all_owed, strict=True) if owed <= 1]
    if not limits.max_step_ms or not decodes:
        return None
    least = max(LEAST_ROWS, limits.chunk_align)
    return StepBudget(ledger.step_times, limits.max_step_ms, len(decodes), sum(decodes) + len(decodes), least)


def _chunk(computed: int, owed: int, room: int, limits: Limits, budget: StepBudget | None) -> int:
    """Rows for a sequence that is behind: cut at a multiple of chunk_align unless it catches up."""
    rows = min(owed, room, limits.max_chunk)
    if budget is not None:
        rows = min(rows, budget.rows(computed))
    if rows < owed:
        rows -= (computed + rows) % limits.chunk_align
    return max(rows, 0)


def _held_places(ledger: Ledger) -> list[Share]:
    """A row for each place whose sequence has ended: it goes on as if it had not, to the end of the padded batch.

    Its blocks were reserved at admission. One that is there before the others stays at its last position.
    """
    shares, blocks = [], ledger.blocks
    for sequence in ledger.held:
        position = sequence.num_computed = min(sequence.num_computed, ledger.padded_length - 1)
        if blocks.windowed:
            blocks.drop_behind_windows(sequence.tables, position)
        has_block = blocks.grow(sequence.tables, position + 1)
        assert has_block, "a padded batch has blocks for all its positions"
        shares.append(Share(sequence, 1, pads=True))
    return shares


class _Outputs:
    """The columns of a step's output rows. Few steps have masks or targets: both are kept by index."""

    def __init__(self) -> None:
        self.rows, self.params, self.purposes = array("i"), array("i"), array("b")
        self.masks: dict[int, bytes] = {}
        self._targets: dict[int, int] = {}

    def score(self, sequence: Sequence, first_row: int, start: int, end: int) -> range:
        """Output rows that score the prompt at positions [start, end), whose rows begin at `first_row`. Their indices.

        The last token of the prompt is followed by none that is known.
        """
        begin = len(self.rows)
        for position in range(start, min(end, sequence.num_prompt - 1)):
            index = self._append(first_row + position - start, sequence.slot, OutputPurpose.PROMPT_LOGPROBS)
            self._targets[index] = sequence.tokens[position + 1]
        return range(begin, len(self.rows))

    def sample(self, sequence: Sequence, row: int) -> int:
        """The output row that gives the next token of a sequence. Its index."""
        index = self._append(row, sequence.slot, OutputPurpose.SAMPLE)
        if sequence.matcher is not None and (mask := sequence.matcher.mask) is not None:
            self.masks[index] = mask
        return index

    def discard(self, sequence: Sequence, row: int) -> None:
        """An output row whose token is chosen, and read by nobody."""
        self._append(row, sequence.slot, OutputPurpose.SAMPLE)

    def mask_indices(self) -> "array[int]":
        """Per output row, as StepPlan.out_masks."""
        return self._column({index: number for number, index in enumerate(self.masks)})

    def targets(self) -> "array[int]":
        """Per output row, as StepPlan.out_targets."""
        return self._column(self._targets)

    def _append(self, row: int, slot: int, purpose: OutputPurpose) -> int:
        self.rows.append(row)
        self.params.append(slot)
        self.purposes.append(purpose)
        return len(self.rows) - 1

    def _column(self, values: dict[int, int]) -> "array[int]":
        """-1 where there is no value; empty when there are none."""
        if not values:
            return array("i")
        column = array("i", [-1]) * len(self.rows)
        for index, value in values.items():
            column[index] = value
        return column


def write_plan(step_id: int, shares: list[Share], blocks: KvBlocks) -> tuple[StepPlan, list[Entry]]:
    """The plan that computes `shares`. Their tokens count as computed from here on."""
    tokens, positions = array("i"), array("i")
    kv_slots = tuple(array("q") for _ in blocks.pools)
    row_offsets, seq_slots = array("i", [0]), array("i")
    table_offsets = tuple(array("i", [0]) for _ in blocks.pools)
    table_blocks = tuple(array("i") for _ in blocks.pools)
    outputs = _Outputs()
    adapters = array("i")
    resets: list[SlotReset] = []
    entries: list[Entry] = []
    for sequence, num_rows, pads in shares:
        if sequence.wants_reset:
            resets.append(slot_reset(sequence.request, sequence.choice, sequence.slot, sequence.output))
            sequence.wants_reset = False
        first_row, start = len(tokens), sequence.num_computed
        end = start + num_rows
        tokens.extend(sequence.tokens[start:end])
        positions.extend(range(start, end))
        for group, slots in enumerate(kv_slots):
            blocks.append_slots(slots, sequence.tables, group, start, end)
            table_blocks[group].extend(sequence.tables.groups[group])
            table_offsets[group].append(len(table_blocks[group]))
        sequence.num_computed = end
        if pads:
            tokens.extend(_PAD * (len(positions) - len(tokens)))
            if sequence.state is State.FINISHED:
                outputs.discard(sequence, len(tokens) - 1)
            elif end == sequence.num_padding:
                _begin_behind_padding(sequence, blocks)
        else:
            scored = _NONE if sequence.scores is None else outputs.score(sequence, first_row, start, end)
            output = outputs.sample(sequence, first_row + num_rows - 1) if end == sequence.num_tokens else -1
            entries.append(Entry(sequence, sequence.run, start, first_row, num_rows, output, scored))
        row_offsets.append(len(tokens))
        seq_slots.append(sequence.slot)
        adapters.append(sequence.request.adapter)
    plan = StepPlan(
        step_id=step_id,
        tokens=tokens,
        positions=positions,
        kv_slots=kv_slots,
        parents=array("i"),
        row_offsets=row_offsets,
        seq_slots=seq_slots,
        block_tables=tuple(BlockTable(o, b) for o, b in zip(table_offsets, table_blocks, strict=True)),
        adapters=adapters if max(adapters) >= 0 else array("i"),
        out_rows=outputs.rows,
        out_purposes=outputs.purposes,
        out_params=outputs.params,
        out_masks=outputs.mask_indices(),
        masks=tuple(outputs.masks.values()),
        out_targets=outputs.targets(),
        resets=tuple(resets),
    )
    return plan, entries


def _begin_behind_padding(sequence: Sequence, blocks: KvBlocks) -> None:
    """The padding of a prompt is in a step: the prompt begins at position 0, as if there had been none."""
    blocks.release(sequence.tables)
    sequence.num_computed = sequence.num_padding = 0
    sequence.wants_reset = True
