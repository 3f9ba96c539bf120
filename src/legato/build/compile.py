"""From an open checkpoint to an engine file: model family, lowering, packing. A start from the cache needs none."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from legato import __version__
from legato.build.engine_file import write_engine
from legato.build.lower import lower
from legato.build.pack import pack_tensors
from legato.core.config import ModelConfig
from legato.core.errors import ConfigError
from legato.models import find
from legato.tokenizer.assets import TextAssets, assets_from_folder, assets_from_gguf
from legato.weights.open import Checkpoint
from legato.weights.source import Progress

__all__ = ["compile_engine"]


def compile_engine(
    model: ModelConfig, checkpoint: Checkpoint, path: Path, progress: Progress | None, threads: int
) -> None:
    """Lowers and packs an open checkpoint, and writes its engine file to `path`. CheckpointError, ConfigError."""
    source = checkpoint.source
    with _no_collection():
        arch = find(source.config, source.config_file)
        plan = lower(arch, source, format=model.format, max_position=model.max_model_len)
        meta = {
            "legato": __version__,
            "model": checkpoint.name,
            "fingerprint": checkpoint.fingerprint,
            "format": model.format,
            "text": _text_assets(model, checkpoint).to_json(),
        }
        write_engine(path, plan, meta, pack_tensors(plan, source, threads=threads, progress=progress))


@contextmanager
def _no_collection() -> Iterator[None]:
    """A vocabulary is 10^5 objects without cycles, which the garbage collector would look through again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _text_assets(model: ModelConfig, checkpoint: Checkpoint) -> TextAssets:
    if model.tokenizer is not None:
        path = Path(model.tokenizer).expanduser()
        assets = assets_from_folder(path.parent if path.name == "tokenizer.json" else path)
    elif checkpoint.folder is not None:
        assets = assets_from_folder(checkpoint.folder)
    else:
        assets = assets_from_gguf(checkpoint.gguf_metadata or {})
    if model.chat_template is None:
        return assets
    template = Path(model.chat_template).expanduser()
    try:
        return replace(assets, chat_template=template.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"chat_template: cannot read {template}: {error}") from error
