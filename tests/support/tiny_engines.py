"""Tiny engine files from the tiny checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from legato.build.engine_file import EngineFile, write_engine
from legato.build.lower import lower
from legato.build.pack import pack_tensors
from legato.core.config import CacheConfig, SchedulerConfig
from legato.executor.native import NativeExecutor
from legato.models import find
from legato.weights.source import TensorSource
from support.tiny_models import tiny_config, tiny_source

META = {"legato": "0", "model": "tiny", "fingerprint": "", "format": "auto", "text": "{}"}


def write_tiny(path: Path, source: TensorSource, *, format: str = "auto") -> Path:
    """Packs a checkpoint in memory into `path`."""
    plan = lower(find(source.config, source.config_file), source, format=format)
    write_engine(path, plan, META, pack_tensors(plan, source, threads=1))
    return path


def tiny_engine(
    path: Path,
    model_type: str = "llama",
    *,
    format: str = "auto",
    dtype: Callable[[str], str] = lambda name: "F32",
    **changes: Any,
) -> Path:
    return write_tiny(path, tiny_source(tiny_config(model_type, **changes), dtype=dtype), format=format)


def open_native(path: Path, **changes: Any) -> NativeExecutor:
    """An executor with room for 64 rows of 64 sequences in 60 blocks; `changes` replace its settings."""
    settings = {"block_size": 16, "num_blocks": 60, "kv_cache_dtype": "auto", "max_rows": 64, "max_seqs": 64}
    settings |= {"threads": 1, "isa": None, "prefault_kv": False} | changes
    return NativeExecutor.open(
        EngineFile.open(path),
        cache=CacheConfig(
            block_size=settings["block_size"],
            num_blocks=settings["num_blocks"],
            kv_cache_dtype=settings["kv_cache_dtype"],
            prefault_kv=settings["prefault_kv"],
        ),
        scheduler=SchedulerConfig(max_num_batched_tokens=settings["max_rows"], max_num_seqs=settings["max_seqs"]),
        threads=settings["threads"],
        isa=settings["isa"],
    )
