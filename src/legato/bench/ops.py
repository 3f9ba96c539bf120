"""Single kernels against the limits of the machine, each measured in turns with them.

Matrix products go through copies of a weight that no cache holds, as a step through a model's layers does. A product
of few rows is bound by the bytes of its weight, one of many rows by arithmetic; both shares are given. Attention goes
through layers of a cache in the same way: decode is bound by the bytes of K and V, prefill by arithmetic.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from legato import _native
from legato.bench.machine import READ_BYTES, Limits
from legato.core.config import CacheConfig, flags

__all__ = ["FORMATS", "HEADS", "KV_DTYPES", "SHAPES", "OpRun", "attentions", "linears", "rows_kernels"]

# name: (packed type, layout, activations, kind of number that its arithmetic peak is of)
FORMATS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "f32": ("f32", {}, "f32", "f32"),
    "bf16": ("bf16", {}, "bf16", "bf16"),
    "int8": ("i8", {}, "s8g64", "int8"),
    "int4": ("i4", {"group": 16}, "s8g64", "int8"),
    "q4_1": ("q4", {"group": 32, "has_min": True}, "s8g32", "int8"),
}
SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576))  # n x k of the default model
HEADS = (9, 3, 64)  # q heads, kv heads and head_dim of the default model
KV_DTYPES = tuple(
    dtype for flag in flags(CacheConfig) if flag.name == "kv_cache_dtype" for dtype in flag.choices if dtype != "auto"
)
COPIES_BYTES = READ_BYTES  # of a weight's copies together, or of the layers of a cache
Result = TypeVar("Result")
TURNS = 3  # of a kernel and the limits


@dataclass(frozen=True, slots=True)
class OpRun:
    """One kernel: seconds of a call, what it had to do, and the limits beside it in operations and bytes per second."""

    name: str
    rows: int
    seconds: float
    operations: float
    bytes: float
    peak: float | None  # None: it is not arithmetic that counts
    bandwidth: float

    @property
    def of_peak(self) -> float | None:
        return None if self.peak is None else self.operations / self.seconds / self.peak

    @property
    def of_bandwidth(self) -> float:
        return self.bytes / self.seconds / self.bandwidth

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "of_peak": self.of_peak, "of_bandwidth": self.of_bandwidth}


def linears(
    limits: Limits,
    *,
    formats: Sequence[str],
    shapes: Sequence[Sequence[int]],
    rows: Sequence[int],
    seconds: float = 0.2,
    copies_bytes: int = COPIES_BYTES,
) -> list[OpRun]:
    """y = x W^T of each format, shape (n, k) and number of rows."""
    runs = []
    for format in formats:
        type_, layout, acts, kind = FORMATS[format]
        for n, k in shapes:
            weight = _native.describe_weight(type_, n, k, **layout)
            for m in rows:
                call = partial(
                    _native.ops.linear_bench,
                    weight,
                    acts,
                    m,
                    threads=limits.threads,
                    isa=limits.isa,
                    bytes=copies_bytes,
                )
                took, peak, bandwidth = _in_turns(limits, kind, seconds, call)
                operations, name = 2.0 * m * n * k, f"linear {format} {n}x{k}"
                runs.append(OpRun(name, m, statistics.median(took), operations, weight.bytes, peak, bandwidth))
    return runs


def attentions(
    limits: Limits,
    *,
    kv_dtypes: Sequence[str],
    heads: Sequence[int] = HEADS,
    context: int = 1024,
    batch: int = 32,
    seconds: float = 0.2,
    layers_bytes: int = COPIES_BYTES,
) -> list[OpRun]:
    """Attention of one layer: a decode step of `batch` sequences, and the prefill of one, each over `context` tokens.

    The peak is that of bf16, of f32 for an fp32 cache. Operations are the products with K and with V that a causal
    mask leaves. Items are cut as in a step of many sequences, never along the context.
    """
    q_heads, kv_heads, head_dim = heads
    runs = []
    for dtype in kv_dtypes:
        for kind, sequences, rows, at_least in (("decode", batch, 1, layers_bytes), ("prefill", 1, context, 1)):
            call = partial(
                _native.ops.attention_bench,
                dtype,
                sequences,
                context,
                rows,
                q_heads,
                kv_heads,
                head_dim,
                threads=limits.threads,
                isa=limits.isa,
                bytes=at_least,
            )
            number = "f32" if dtype == "fp32" else "bf16"
            found, peak, bandwidth = _in_turns(limits, number, seconds, call)
            took, size = statistics.median(seconds for seconds, _ in found), found[0][1]
            seen = sequences * sum(range(context - rows + 1, context + 1))
            operations = 4.0 * q_heads * head_dim * seen
            name = f"{kind} attention, {dtype} KV, context {context}"
            runs.append(OpRun(name, sequences * rows, took, operations, size, peak, bandwidth))
    return runs


def rows_kernels(
    isa: str,
    bandwidth: float,
    *,
    kv_dtypes: Sequence[str] = KV_DTYPES,
    heads: Sequence[int] = HEADS,
    width: int = 576,
    vocab: int = 49_152,
    rows: int = 512,
) -> list[OpRun]:
    """Kernels that read rows of float32 once, on one thread; the data fit a cache, so shares may exceed 1."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, width), dtype=np.float32)
    weight = np.ones(width, np.float32)
    quantized = _native.ops.Acts("s8g64", rows, width)
    logits = rng.standard_normal(vocab, dtype=np.float32)
    uniforms = rng.random(8, dtype=np.float32)
    calls: dict[str, tuple[int, int, Callable[[], object]]] = {
        "rms norm to int8": (rows, x.nbytes, lambda: _native.ops.norm(isa, x, weight, None, False, 1e-5, quantized)),
        "quantize to int8": (rows, x.nbytes, lambda: _native.ops.quantize(isa, x, quantized)),
        **{f"rope, K and V to {dtype} KV": _to_cache(isa, dtype, heads, rows) for dtype in kv_dtypes},
        "sample, greedy": (8, 8 * logits.nbytes, lambda: _native.ops.sample(isa, logits, uniforms, 0.0)),
        "sample": (8, 8 * logits.nbytes, lambda: _native.ops.sample(isa, logits, uniforms, 1.0)),
        "sample, top-p 0.9": (8, 8 * logits.nbytes, lambda: _native.ops.sample(isa, logits, uniforms, 1.0, 0, 0.9)),
    }
    runs = []
    for name, (count, size, call) in calls.items():
        took = _best(call)
        runs.append(OpRun(name, count, took, 0.0, size, None, size / took / bandwidth))
    return runs


def _in_turns(
    limits: Limits, kind: str, seconds: float, call: Callable[..., Result]
) -> tuple[list[Result], float, float]:
    """What `call` returns in each of its turns with the peak, the median peak, and the bandwidth after them."""
    found, peaks = [], []
    for _ in range(TURNS):
        peaks.append(limits.peak(kind, seconds / TURNS))
        found.append(call(min_seconds=seconds / TURNS))
    return found, statistics.median(peaks), limits.bandwidth(seconds / TURNS)


def _to_cache(isa: str, dtype: str, heads: Sequence[int], rows: int) -> tuple[int, int, Callable[[], object]]:
    """Rows, bytes read, and the call that rotates q and k and writes K and V."""
    q_heads, kv_heads, head_dim = heads
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, (q_heads + 2 * kv_heads) * head_dim), dtype=np.float32)
    cos_sin = rng.random((rows, head_dim), dtype=np.float32)
    positions, slots = np.arange(rows, dtype=np.int32), np.arange(rows, dtype=np.int64)
    q = np.empty((rows, q_heads * head_dim), np.float32)
    cache = _native.ops.KvCache(dtype, -(-rows // 16), 16, kv_heads, head_dim)

    def call() -> None:
        _native.ops.heads_to_cache(isa, cache, x, q_heads, None, None, 0.0, cos_sin, positions, slots, q)

    return rows, x.nbytes, call


def _best(call: Callable[[], object], repeats: int = 20) -> float:
    """Seconds of the fastest call."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best
