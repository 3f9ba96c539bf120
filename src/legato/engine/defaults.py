"""Sampling parameters of a request that sets none: who has a say, and in which order."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from legato.core.config import EngineConfig
from legato.core.errors import ConfigError, RequestError
from legato.core.types import SamplingParams
from legato.sampling.params import validate

__all__ = ["sampling_defaults"]

FILE = "generation_config.json"
_FIELDS = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")},
    "max_new_tokens": "max_tokens",
}


def sampling_defaults(
    model: Mapping[str, Any], config: EngineConfig, *, vocab_size: int, max_model_len: int
) -> SamplingParams:
    """`override_generation_config`, else the generation config, else OpenAI's defaults.

    model: the model's own generation config, which `generation_config` may replace ("vllm": by nothing; a folder: by
    the one in it). A `max_new_tokens` longer than the context means all of it. ConfigError names setting and value.
    """
    chosen = {**_chosen(model, config.generation_config), **_override(config.override_generation_config)}
    given = {ours: chosen[name] for name, ours in _FIELDS.items() if chosen.get(name) is not None}
    if isinstance(longest := given.get("max_tokens"), int):
        given["max_tokens"] = min(longest, max_model_len)
    params = replace(SamplingParams(max_tokens=None), **given)
    try:
        validate(params, vocab_size, max_model_len)
    except RequestError as error:
        raise ConfigError(f"generation_config: {error}") from error
    return params


def _chosen(model: Mapping[str, Any], setting: str) -> Mapping[str, Any]:
    if setting == "auto":
        return model
    if setting == "vllm":
        return {}
    file = Path(setting).expanduser() / FILE
    try:
        return _object(file.read_text(encoding="utf-8"), f"generation_config: {file}")
    except OSError as error:
        raise ConfigError(f"generation_config: {file}: {error.strerror}") from error


def _override(setting: str | None) -> Mapping[str, Any]:
    if setting is None:
        return {}
    override = _object(setting, "override_generation_config")
    for name in override:
        if name not in _FIELDS:
            raise ConfigError(f"override_generation_config: {name!r} is not one of {', '.join(_FIELDS)}")
    return override


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where}: is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: holds no JSON object")
    return value
