"""How long a step takes: for each class of op its arithmetic and its bytes, and what depends on neither.

    step = linear (with the head) + attention (decode, prefill) + rest (vector, all-reduce, overhead)

Linear layers and the head read their weights once however many rows there are; decode attention reads the cache of
every sequence, prefill attention that of its own prompt. With tensor parallelism each device has its share of both, and
two all-reduces a layer join the rows again. All classes run one after another, as the ops of a plan do.

Attention takes the larger of its arithmetic and its bytes. Linear layers take the larger, and what the machine does not
hide behind it of the smaller (`Hardware.overlap`).
"""

from dataclasses import dataclass
from itertools import pairwise

from legato.core.errors import ConfigError
from legato.core.types import StepPlan

__all__ = ["AttentionCost", "Experts", "Hardware", "ModelProfile", "Numbers", "Roofline", "Work", "work_of"]

_ROW_BYTES = 2  # of a value that an all-reduce moves


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One machine. Rates are of one device, per second; efficiencies are the share of a peak that kernels reach."""

    name: str
    devices: int
    memory: int  # bytes of one device
    flops: dict[str, float]  # dense matrix peak, by format of the weights
    bandwidth: float  # bytes read from memory
    link: float  # bytes between devices, one direction; 0: a single device
    link_s: float = 0.0  # latency of one all-reduce
    matmul: float  # efficiency: linear layers and head, of the peak
    prefill: float  # efficiency: attention of prompts, of the peak of bf16
    weights: float  # efficiency: reading weights, of the bandwidth
    overlap: float = 1.0  # share of a linear layer's arithmetic or bytes, whichever is less, that the other one hides
    cache: float  # efficiency: reading the KV cache, of the bandwidth
    vector: float  # values of a row that norms, rotations and residual adds pass per second
    step_s: float  # per step, whatever it holds
    sequence_s: float  # per sequence in a step: sampling, planning, committing
    price: float  # currency units per hour of the whole machine


@dataclass(frozen=True, slots=True)
class Experts:
    """Expert layers of one kind. params: weights of one expert, over all layers."""

    count: int
    top_k: int
    params: int


@dataclass(frozen=True, slots=True)
class AttentionCost:
    """Layers whose attention costs the same. values: of the cache per token and layer."""

    kind: str  # of the cache group: full | window | latent
    window: int | None
    layers: int
    kv_heads: int  # what a device can have a share of
    values: int
    flops: int  # per row, layer and position that it attends to


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """A model as its sizes."""

    name: str
    vocab: int
    hidden: int
    max_position: int
    layers: int
    params: int  # of all linear layers without experts and head
    head: int  # of the output head
    tables: int  # of embeddings that are only looked up
    experts: tuple[Experts, ...]
    attention: tuple[AttentionCost, ...]

    @property
    def total(self) -> int:
        return self.params + self.head + self.tables + sum(e.count * e.params for e in self.experts)


@dataclass(frozen=True, slots=True)
class Numbers:
    """In which numbers a model is held, and over how many devices."""

    format: str
    weight_bytes: float  # per weight of a linear layer
    cache_bytes: float  # per value of the KV cache
    devices: int = 1  # tensor parallelism


@dataclass(frozen=True, slots=True)
class Work:
    """What a step holds, for one window. Contexts are sums over sequences, `attended` over rows, both in positions."""

    decodes: int  # sequences of one row
    decode_context: int
    prefill_context: int
    prefill_attended: int


def work_of(plan: StepPlan, window: int | None) -> Work:
    """O(sequences) for rows that decode, which are almost all. Padding counts: it is computed."""
    offsets, positions = plan.row_offsets, plan.positions
    if plan.num_rows == plan.num_seqs and window is None:
        return Work(plan.num_rows, sum(positions) + plan.num_rows, 0, 0)
    decodes = decode_context = prefill_context = attended = 0
    for first, end in pairwise(offsets):
        seen = positions[end - 1] + 1
        if end - first == 1:
            decodes += 1
            decode_context += seen if window is None else min(seen, window)
            continue
        start, rows = seen - (end - first), end - first
        if window is None:
            prefill_context += seen
            attended += rows * start + rows * (rows + 1) // 2
        else:
            prefill_context += min(seen, window + rows - 1)
            attended += sum(min(position + 1, window) for position in positions[first:end])
    return Work(decodes, decode_context, prefill_context, attended)


class Roofline:
    """Seconds of a step of one model on one machine. ConfigError where the machine has no figure for the format.

    position_s: of one position more of context in a decode step. unwindowed: all layers see all positions.
    """

    def __init__(self, model: ModelProfile, hardware: Hardware, numbers: Numbers) -> None:
        if numbers.format not in hardware.flops:
            raise ConfigError(f"format: {hardware.name} has no figure for {numbers.format}")
        if not 1 <= numbers.devices <= hardware.devices:
            raise ConfigError(f"tp: {numbers.devices} is not between 1 and the {hardware.devices} of {hardware.name}")
        self.model = model
        devices = self._devices = numbers.devices
        self._hardware = hardware
        self._matmul = hardware.flops[numbers.format] * hardware.matmul * devices
        self._weights = hardware.bandwidth * hardware.weights * devices / numbers.weight_bytes
        self._prefill = hardware.flops.get("bf16", hardware.flops[numbers.format]) * hardware.prefill * devices
        # Where there are more devices than KV heads, some hold the same ones.
        cache = hardware.bandwidth * hardware.cache / numbers.cache_bytes
        self._cache = [cache * min(devices, kind.kv_heads) for kind in model.attention]
        kinds = zip(model.attention, self._cache, strict=True)
        self.position_s = sum(
            kind.layers * max(kind.values / cache, kind.flops / self._prefill) for kind, cache in kinds
        )
        self.unwindowed = all(kind.window is None for kind in model.attention)
        self._fixed: dict[tuple[int, int, int], float] = {}

    def fixed_s(self, rows: int, sequences: int, outputs: int) -> float:
        """Seconds of all but attention."""
        key = (rows, sequences, outputs)
        seconds = self._fixed.get(key)
        if seconds is None:
            if len(self._fixed) > 100_000:
                self._fixed.clear()
            seconds = self._fixed[key] = self.linear_s(rows, outputs) + self.rest_s(rows, sequences)
        return seconds

    def step_s(self, plan: StepPlan) -> float:
        """Seconds of a planned step."""
        return self.fixed_s(plan.num_rows, plan.num_seqs, len(plan.out_rows)) + self.attention_s(plan)

    def linear_s(self, rows: int, outputs: int) -> float:
        """Seconds of linear layers and head."""
        model = self.model
        active = model.params + sum(e.top_k * e.params for e in model.experts)
        read = model.params + sum(_touched(e, rows) * e.params for e in model.experts)
        seconds = self._overlapped(2 * active * rows / self._matmul, read / self._weights)
        if outputs:
            seconds += self._overlapped(2 * model.head * outputs / self._matmul, model.head / self._weights)
        return seconds

    def rest_s(self, rows: int, sequences: int) -> float:
        """Seconds of norms, rotations and residuals, of all-reduces, and of all that is not computing."""
        vector = rows * self.model.layers * self.model.hidden / (self._hardware.vector * self._devices)
        overhead = self._hardware.step_s + sequences * self._hardware.sequence_s
        return vector + self._all_reduces_s(rows) + overhead

    def attention_s(self, plan: StepPlan) -> float:
        """Seconds of attention."""
        if not self.unwindowed:
            return self._windowed_s(plan)
        work = work_of(plan, None)
        seconds = self.position_s * work.decode_context
        return seconds + self._prefill_s(work) if work.prefill_context else seconds

    def _overlapped(self, arithmetic_s: float, bytes_s: float) -> float:
        shown = 1 - self._hardware.overlap
        return max(arithmetic_s, bytes_s) + shown * min(arithmetic_s, bytes_s)

    def _prefill_s(self, work: Work) -> float:
        kinds = zip(self.model.attention, self._cache, strict=True)
        return sum(
            kind.layers
            * max(work.prefill_attended * kind.flops / self._prefill, work.prefill_context * kind.values / cache)
            for kind, cache in kinds
        )

    def _windowed_s(self, plan: StepPlan) -> float:
        seconds = 0.0
        for kind, cache in zip(self.model.attention, self._cache, strict=True):
            work = work_of(plan, kind.window)
            decode = work.decode_context * max(kind.values / cache, kind.flops / self._prefill)
            prefill = max(
                work.prefill_attended * kind.flops / self._prefill, work.prefill_context * kind.values / cache
            )
            seconds += kind.layers * (decode + prefill)
        return seconds

    def _all_reduces_s(self, rows: int) -> float:
        """Ring all-reduces after attention and MLP of each layer."""
        devices = self._devices
        if devices == 1:
            return 0.0
        moved = 2 * (devices - 1) / devices * rows * self.model.hidden * _ROW_BYTES
        return 2 * self.model.layers * (moved / self._hardware.link + self._hardware.link_s)


def _touched(experts: Experts, rows: int) -> float:
    """Experts of a layer that some row is routed to, if the router spreads evenly."""
    return float(experts.count * (1 - (1 - experts.top_k / experts.count) ** rows))
