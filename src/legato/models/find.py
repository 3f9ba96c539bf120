"""From config.json to an Arch: the family file is found by its name, so there is no list to edit.

A family file has ARCHITECTURES (names in config.json that it reads; the first is meant where there is none), a
function `arch(c: Config) -> Arch`, and perhaps ABSENT: what transformers takes for keys that are left out.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from legato.core.errors import CheckpointError
from legato.models.config import Config
from legato.models.spec import Arch

__all__ = ["families", "find"]


def families() -> list[str]:
    """The `model_type` of every family file."""
    package = str(Path(__file__).parent)
    names = [info.name for info in pkgutil.iter_modules([package])]
    return sorted(name for name in names if hasattr(_module(name), "ARCHITECTURES"))


def find(config: Mapping[str, Any], file: str, *, declared: bool = False) -> Arch:
    """The architecture that a config.json describes.

    `file` is only named in messages. `declared` also admits families whose ops no executor runs yet. Raises
    CheckpointError for an unknown or unfinished architecture, a missing, mistyped or unknown key.
    """
    _refuse_quantization(config, file)
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(f"{file}: key 'model_type' is missing")
    name = model_type.replace("-", "_")
    if not name.isidentifier() or not (Path(__file__).parent / f"{name}.py").is_file():
        raise CheckpointError(f"{file}: model_type '{model_type}' is not supported")
    family = _module(name)
    known: tuple[str, ...] = getattr(family, "ARCHITECTURES", ())
    names = config.get("architectures") or list(known[:1])
    if not isinstance(names, list) or not names or names[0] not in known:
        raise CheckpointError(f"{file}: architecture {names or model_type!r} is not supported")
    reader = Config({**getattr(family, "ABSENT", {}), **config}, file, names[0])
    arch: Arch = family.arch(reader)
    reader.finish()
    if not (arch.runs or declared):
        raise CheckpointError(f"{file}: architecture '{arch.name}' is described but its operations do not run yet")
    return arch


def _refuse_quantization(config: Mapping[str, Any], file: str) -> None:
    """Weights that an importer must translate first. To read them as if they were plain would be garbage."""
    for key in ("quantization_config", "compression_config"):
        if (section := config.get(key)) is not None:
            method = section.get("quant_method") if isinstance(section, Mapping) else section
            raise CheckpointError(f"{file}: key '{key}' says that the weights are quantized ({method}); not supported")


def _module(name: str) -> Any:
    return importlib.import_module(f"legato.models.{name}")
