"""The two executors over a checkpoint, with room for one long sequence and the logits of all its rows."""

from collections.abc import Callable
from pathlib import Path

from legato.build.engine_file import EngineFile
from legato.build.lower import lower
from legato.core.config import CacheConfig, SchedulerConfig
from legato.executor.native import NativeExecutor
from legato.executor.reference import ReferenceExecutor
from legato.models.find import find
from legato.weights.source import TensorSource
from support.drive import LogitsExecutor
from support.tiny_engines import write_tiny

Make = Callable[[TensorSource, Path], LogitsExecutor]


def reference(source: TensorSource, folder: Path, *, rows: int = 64, blocks: int = 8) -> ReferenceExecutor:
    plan = lower(find(source.config, source.config_file), source)
    return ReferenceExecutor(plan, source, block_size=16, num_blocks=blocks, max_rows=rows, max_seqs=rows)


def native(
    source: TensorSource,
    folder: Path,
    *,
    format: str = "fp32",
    kv_cache_dtype: str = "fp32",
    rows: int = 64,
    blocks: int = 8,
    threads: int | None = 1,
    isa: str | None = None,
) -> NativeExecutor:
    """`folder` gets the engine file."""
    path = write_tiny(folder / f"{format}.legato", source, format=format)
    return NativeExecutor.open(
        EngineFile.open(path),
        cache=CacheConfig(block_size=16, num_blocks=blocks, kv_cache_dtype=kv_cache_dtype),
        scheduler=SchedulerConfig(max_num_batched_tokens=rows, max_num_seqs=rows),
        threads=threads,
        isa=isa,
    )


EXECUTORS: dict[str, Make] = {"reference": reference, "native": native}
