"""From a configuration to a running model: find or build the engine file, load it, run one token through it."""

import sys
from contextlib import ExitStack
from pathlib import Path

from legato.build.engine import build_engine, ensure_engine
from legato.build.engine_file import EngineFile
from legato.core.config import CacheConfig, EngineConfig, ModelConfig
from legato.core.errors import CheckpointError, ConfigError
from legato.core.types import Executor
from legato.engine.assemble import Engine, assemble
from legato.engine.progress import byte_progress
from legato.executor.disk_tier import DiskTier
from legato.executor.memory import MemoryBudget, default_threads
from legato.executor.native import NativeExecutor
from legato.executor.reference import ReferenceExecutor
from legato.weights.cache_dir import KV, Hold, default_cache_dir
from legato.weights.open import Checkpoint, open_checkpoint
from legato.weights.source import Progress

__all__ = ["ENGINE_SUFFIX", "build_file", "engine_file", "memory_table", "start"]

ENGINE_SUFFIX = ".legato"
REFERENCE_BLOCKS = 1024  # KV blocks of the reference executor, unless the configuration says how many


def start(config: EngineConfig) -> Engine:
    """An engine with the configured model loaded; one token has run through the whole plan.

    Downloads and builds what is not in the cache, with progress bars. CheckpointError, ConfigError.
    """
    sys.setswitchinterval(5e-4)  # seconds; the engine thread must get the interpreter back quickly
    file = engine_file(config.model)
    memory = ""
    with ExitStack() as resources:
        hold = resources.enter_context(_hold(file.path))
        if config.executor == "reference":
            executor: Executor = _reference(config, file)
        else:
            native = NativeExecutor.open(
                file,
                cache=config.cache,
                scheduler=config.scheduler,
                threads=config.threads,
                offload_dir=_offload_dir(config),
            )
            executor, memory = native, memory_table(native.memory)
        resources.callback(executor.close)
        engine = assemble(executor, file.text_assets, config, file.meta["model"], memory, hold)
        engine.loop.warm_up()
        resources.pop_all()  # they are the engine's now
    return engine


def engine_file(model: ModelConfig) -> EngineFile:
    """The model's engine file: the one that was named, or one from the cache, built if need be."""
    if not model.model.endswith(ENGINE_SUFFIX):
        with byte_progress() as progress:
            return ensure_engine(model, progress, threads=default_threads())
    file = EngineFile.open(model.model)
    for name in ("max_model_len", "tokenizer", "chat_template", "revision"):
        if getattr(model, name) is not None:
            raise ConfigError(f"{name}: {model.model} is built already; say it to `legato build`")
    if model.format not in ("auto", file.meta["format"]):
        raise ConfigError(f"format: {model.model} was built as {file.meta['format']}, not {model.format}")
    return file


def build_file(model: ModelConfig, folder: Path | None) -> Path:
    """Build a model's engine file into a folder (None: the cache) and return its path."""
    if folder is None:
        return engine_file(model).path
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output: {folder}: {error.strerror}") from error
    with byte_progress() as progress, _checkpoint(model, progress) as checkpoint:
        path = folder / f"{checkpoint.name}-{model.format}{ENGINE_SUFFIX}"
        build_engine(model, checkpoint, path, progress, threads=default_threads())
    return path


def memory_table(memory: MemoryBudget) -> str:
    """How the memory was divided, for people."""
    rows = memory.rows()
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:{width}} {size / (1 << 20):10,.1f} MiB" for name, size in rows]
    warning = memory.warning()
    return "\n".join(["memory", *lines, f"  {memory.fits()}", *([f"warning: {warning}"] if warning else [])])


def _hold(path: Path) -> Hold:
    """Keeps `legato cache prune` from the engine file while it is in use."""
    try:
        return Hold(path)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error


def _reference(config: EngineConfig, file: EngineFile) -> ReferenceExecutor:
    """The file's plan over the checkpoint's own weights."""
    if config.cache.kv_cache_dtype not in ("auto", "fp32"):
        raise ConfigError("kv_cache_dtype: the reference executor keeps its cache in fp32")
    plain = CacheConfig()
    for name in ("kv_cache_memory", "memory_utilization", "prefault_kv"):
        if getattr(config.cache, name) != getattr(plain, name):
            raise ConfigError(f"{name}: the reference executor plans no memory; num_blocks says how much it takes")
    if config.threads is not None:
        raise ConfigError("threads: the reference executor has no threads of its own")
    with byte_progress() as progress, _checkpoint(config.model, progress) as checkpoint:
        executor = ReferenceExecutor(
            file.plan,
            checkpoint.source,
            block_size=config.cache.block_size,
            num_blocks=config.cache.num_blocks or REFERENCE_BLOCKS,
            max_rows=config.scheduler.max_num_batched_tokens,
            max_seqs=config.scheduler.max_num_seqs,
        )
    block_bytes = [group.bytes_per_block for group in executor.info().cache_groups]
    identity = {"engine": file.digest(), "kernels": "numpy", "kv_cache_dtype": "fp32"}
    disk = DiskTier.open(config.cache, _offload_dir(config), identity, block_bytes)
    if disk is not None:
        executor.use_disk(disk)
    return executor


def _cache_dir(model: ModelConfig) -> Path:
    return Path(model.cache_dir).expanduser() if model.cache_dir else default_cache_dir()


def _offload_dir(config: EngineConfig) -> Path | None:
    """Where evicted blocks go, if anywhere."""
    if not config.cache.kv_offloading_size:
        return None
    chosen = config.cache.kv_offloading_dir
    return _cache_dir(config.model) / KV if chosen is None else Path(chosen).expanduser()


def _checkpoint(model: ModelConfig, progress: Progress) -> Checkpoint:
    return open_checkpoint(model.model, revision=model.revision, cache_dir=_cache_dir(model), progress=progress)
