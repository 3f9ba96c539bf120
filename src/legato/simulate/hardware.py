"""Machines as data: hardware.toml, or a file of the same form."""

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from legato.core.errors import ConfigError
from legato.executor.roofline import Hardware

__all__ = ["BUILT_IN", "find_hardware"]

BUILT_IN = Path(__file__).with_name("hardware.toml")


def find_hardware(name: str, file: Path = BUILT_IN) -> tuple[Hardware, Mapping[str, int]]:
    """A machine, and the scheduler settings that engines on it start with. ConfigError names file and key."""
    try:
        machines = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from None
    if name not in machines:
        raise ConfigError(f"hardware: {name!r} is not one of {', '.join(machines)} in {file.name}")
    table = machines[name]
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: {name} is not a table")
    values: dict[str, Any] = {"name": name, **table}
    defaults = values.pop("defaults", {})
    if not isinstance(defaults, dict) or not all(isinstance(value, int) for value in defaults.values()):
        raise ConfigError(f"{file}: {name}.defaults: not a table of whole numbers")
    _check(values, f"{file}: {name}")
    return Hardware(**values), defaults


def _check(values: Mapping[str, Any], where: str) -> None:
    known = {f.name: f for f in fields(Hardware)}
    if unknown := sorted(values.keys() - known.keys()):
        raise ConfigError(f"{where}.{unknown[0]}: not a key of a machine")
    for key, field in known.items():
        if key not in values and field.default is MISSING:
            raise ConfigError(f"{where}.{key}: missing")
    for key, value in values.items():
        if key == "flops":
            good = isinstance(value, dict) and value and all(_above_0(rate) for rate in value.values())
        elif key == "name":
            continue
        elif key in ("devices", "memory"):
            good = isinstance(value, int) and _above_0(value)
        elif key in ("link", "link_s", "step_s", "sequence_s", "price"):
            good = value == 0 or _above_0(value)
        elif key == "overlap":
            good = value == 0 or (_above_0(value) and value <= 1)
        else:
            good = _above_0(value)
        if not good:
            raise ConfigError(f"{where}.{key}: {value!r} is not possible")
    if values["devices"] > 1 and not values["link"]:
        raise ConfigError(f"{where}.link: needed for {values['devices']} devices")


def _above_0(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
