"""From a configuration to a running model: build or find the engine file, load it, run one token through it."""

import sys
from dataclasses import replace
from pathlib import Path

from legato.build.engine import ensure_engine
from legato.build.engine_file import EngineFile
from legato.build.lower import lower
from legato.core.config import EngineConfig, ModelConfig
from legato.core.errors import CheckpointError, ConfigError
from legato.engine.assemble import Engine, assemble
from legato.engine.progress import byte_progress
from legato.executor.native import NativeExecutor
from legato.executor.reference import ReferenceExecutor
from legato.models import find
from legato.tokenizer.assets import TextAssets, assets_from_folder, assets_from_gguf
from legato.weights.cache_dir import default_cache_dir
from legato.weights.open import open_checkpoint

__all__ = ["start"]

REFERENCE_BLOCKS = 1024  # KV blocks of the reference executor, unless the configuration says how many


def start(config: EngineConfig) -> Engine:
    """An engine with the configured model loaded; one token has run through the whole plan.

    Downloads and builds what is not in the cache, with progress bars. CheckpointError, ConfigError.
    """
    sys.setswitchinterval(5e-4)  # seconds; the engine thread must get the interpreter back quickly
    engine = _start_reference(config) if config.executor == "reference" else _start_native(config)
    engine.loop.warm_up()
    return engine


def _start_native(config: EngineConfig) -> Engine:
    with byte_progress() as progress:
        path = ensure_engine(config.model, progress=progress)
    meta = EngineFile.open(path).meta
    assets = _override(TextAssets.from_json(meta["text"]), config.model)
    executor = NativeExecutor.open(path, cache=config.cache, scheduler=config.scheduler, threads=config.threads)
    return assemble(executor, assets, config, meta["model"], executor.memory_table)


def _start_reference(config: EngineConfig) -> Engine:
    model = config.model
    if config.cache.kv_cache_dtype not in ("auto", "fp32"):
        raise ConfigError("the reference executor keeps its KV cache in fp32; leave out kv_cache_dtype")
    cache_dir = Path(model.cache_dir) if model.cache_dir else default_cache_dir()
    with byte_progress() as progress:
        checkpoint = open_checkpoint(model.model, revision=model.revision, cache_dir=cache_dir, progress=progress)
    with checkpoint:
        source = checkpoint.source
        if checkpoint.gguf_metadata is not None:
            assets = assets_from_gguf(checkpoint.gguf_metadata)
        else:
            assert checkpoint.folder is not None
            assets = assets_from_folder(checkpoint.folder)
        arch = find(source.config, source.config_file)
        plan = lower(arch, source, format=model.format, max_position=model.max_model_len)
        executor = ReferenceExecutor(
            plan,
            source,
            block_size=config.cache.block_size,
            num_blocks=config.cache.num_blocks or REFERENCE_BLOCKS,
            max_rows=config.scheduler.max_num_batched_tokens,
            max_seqs=config.scheduler.max_num_seqs,
        )
    return assemble(executor, _override(assets, model), config, checkpoint.name)


def _override(assets: TextAssets, model: ModelConfig) -> TextAssets:
    """The model's own text assets, with the tokenizer and chat template of the configuration."""
    if model.tokenizer is not None:
        path = Path(model.tokenizer)
        if path.is_dir():
            own = assets_from_folder(path)
            assets = replace(own, generation_config=assets.generation_config)
        else:
            assets = replace(assets, tokenizer_json=_read(path))
    if model.chat_template is not None:
        assets = replace(assets, chat_template=_read(Path(model.chat_template)))
    return assets


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error
