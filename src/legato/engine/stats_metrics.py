"""What the scheduler says about itself after each step, as metrics."""

from collections.abc import Callable

from legato.engine.instruments import Instruments, Values
from legato.scheduler.stats import SchedulerStats

__all__ = ["StatsMetrics"]

_ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_BATCH = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)

_Read = Callable[[SchedulerStats], Values | float]

# kind, name, help, labels beside the common ones, reading
_READINGS: tuple[tuple[str, str, str, tuple[str, ...], _Read], ...] = (
    ("gauge", "vllm:num_requests_running", "Sequences in the running batch.", (), lambda s: s.running),
    ("gauge", "vllm:num_requests_waiting", "Sequences that wait to run.", (), lambda s: s.waiting),
    (
        "gauge",
        "vllm:num_requests_waiting_by_reason",
        "The same by reason; nothing is ever deferred.",
        ("reason",),
        lambda s: {("capacity",): s.waiting, ("deferred",): 0},
    ),
    ("gauge", "vllm:kv_cache_usage_perc", "Share of the fullest KV pool in use, 0 to 1.", (), lambda s: s.kv_usage),
    (
        "counter",
        "vllm:prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        (),
        lambda s: s.prefix_queries,
    ),
    ("counter", "vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", (), lambda s: s.prefix_hits),
    ("gauge", "legato:kv_pinned_blocks", "KV blocks that cache_control hints pin.", (), lambda s: s.blocks_pinned),
    ("gauge", "legato:kv_disk_blocks", "KV blocks in the file of --kv-offloading-size.", (), lambda s: s.blocks_host),
    (
        "counter",
        "legato:kv_disk_failures",
        "KV blocks that could not be written to that file, or read from it.",
        (),
        lambda s: s.host_copies_lost,
    ),
    ("counter", "vllm:num_preemptions", "Preemptions.", (), lambda s: s.preemptions),
    ("counter", "vllm:corrupted_requests", "Choices that ended because of NaN or Inf.", (), lambda s: s.corrupted),
    (
        "gauge",
        "legato:sequence_slots",
        "Places in the batch: running, held by policy static after the end, free.",
        ("state",),
        lambda s: {
            ("running",): s.running,
            ("held",): s.slots_used - s.running,
            ("free",): s.slots_total - s.slots_used,
        },
    ),
    (
        "gauge",
        "legato:kv_blocks",
        "KV blocks of all cache groups: used, free with a known prefix (cached), free and blank.",
        ("state",),
        lambda s: {
            ("used",): s.blocks_used,
            ("cached",): s.blocks_cached,
            ("blank",): s.blocks_total - s.blocks_used - s.blocks_cached,
        },
    ),
    (
        "gauge",
        "legato:kv_cache_waste_perc",
        "Unused share of the slots in used blocks, 0 to 1.",
        (),
        lambda s: s.kv_waste,
    ),
    ("counter", "legato:steps", "Steps planned; the first one is the warm-up.", (), lambda s: s.steps),
    ("gauge", "legato:waiting_prompt_tokens", "Prompt tokens of what waits.", (), lambda s: s.waiting_tokens),
    (
        "gauge",
        "legato:oldest_wait_seconds",
        "How long the head of the queue has waited.",
        (),
        lambda s: s.oldest_wait_s,
    ),
)


class StatsMetrics:
    """Readings of the last stats, and what the steps held. `update` is for the engine thread."""

    def __init__(self, instruments: Instruments, stats: SchedulerStats) -> None:
        self._stats = stats
        for kind, name, help, labels, read in _READINGS:
            instruments.reading(kind, name, help, self._reader(read), labels)
        self._padding = instruments.counter("legato:padding_rows", "Rows computed for nobody (static_padding).")
        self._rows = instruments.histogram("vllm:iteration_tokens_total", "Tokens computed per step.", _ITERATION)
        self._batch = instruments.histogram("legato:step_sequences", "Sequences per step: the batch size.", _BATCH)

    def update(self, stats: SchedulerStats) -> None:
        planned = stats.steps != self._stats.steps
        self._stats = stats
        if planned:
            step = stats.last_step
            self._padding.add(step.padding)
            self._rows.observe(step.rows - step.padding)
            self._batch.observe(step.sequences)

    def _reader(self, read: _Read) -> Callable[[], Values | float]:
        return lambda: read(self._stats)
