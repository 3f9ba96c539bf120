"""Checkpoints by Hugging Face id, through huggingface_hub, which is imported only when an id is given."""

import contextlib
import glob
import re
from collections.abc import Sequence
from pathlib import Path

from legato.core.errors import CheckpointError
from legato.weights.cache_dir import HUB, Hold
from legato.weights.folder import CONFIG, INDEX, SINGLE, read_index
from legato.weights.messages import refuse

__all__ = ["fetch_from_hub", "is_hub_id"]

_SMALL_FILES = (
    CONFIG,
    INDEX,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def is_hub_id(text: str) -> bool:
    """Whether `text` has the form ORG/NAME."""
    return _ID.fullmatch(text) is not None and ".." not in text and "--" not in text


def fetch_from_hub(model_id: str, revision: str | None, cache_dir: Path) -> tuple[Path, Hold]:
    """The folder of a snapshot with config, tokenizer and safetensors, and the hold on its cache entry.

    Only these files are downloaded, of weights only those that the index names. Without a network a snapshot that
    is in the cache is used. CheckpointError in one line.
    """
    entry = cache_dir / HUB / f"models--{model_id.replace('/', '--')}"
    try:
        entry.mkdir(parents=True, exist_ok=True)
        hold = Hold(entry)
    except OSError as error:
        raise CheckpointError(f"{entry}: {error.strerror or error}") from error
    try:
        folder = _snapshot(model_id, revision, entry.parent, _SMALL_FILES)
        names = sorted(set(read_index(folder / INDEX).values())) if (folder / INDEX).exists() else [SINGLE]
        return _snapshot(model_id, revision, entry.parent, names), hold
    except BaseException:
        hold.close()
        with contextlib.suppress(OSError):  # an entry that is still empty is not kept
            entry.rmdir()
        raise


def _snapshot(model_id: str, revision: str | None, folder: Path, names: Sequence[str]) -> Path:
    import httpx
    import huggingface_hub

    patterns = [glob.escape(name) for name in names]
    try:
        path = huggingface_hub.snapshot_download(model_id, revision=revision, cache_dir=folder, allow_patterns=patterns)
    except (httpx.HTTPError, OSError, ValueError) as error:
        at = f" at revision {revision}" if revision else ""
        unreachable = isinstance(error, huggingface_hub.errors.LocalEntryNotFoundError) and error.__cause__
        said = f"not in the cache, and the Hub does not answer: {unreachable}" if unreachable else str(error)
        reason = " ".join(said.split()) or type(error).__name__
        refuse(model_id, f"no such file or folder, and as a Hugging Face id{at}: {reason}")
    return Path(path)
