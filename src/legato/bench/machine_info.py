"""What a result was measured on and with, for the head of every report."""

import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from legato import __version__
from legato.executor.memory import default_threads

__all__ = ["header"]


def header(flags: Mapping[str, Any], seed: int | None, hidden: Sequence[str] = ()) -> dict[str, Any]:
    """Machine, version and settings. flags: what argparse found; None and the command's function are left out.

    hidden: NAME=VALUE texts of the command (HTTP headers) whose values, perhaps secret, do not belong in a report.
    """

    def shown(value: Any) -> Any:
        if isinstance(value, list):
            return [shown(item) for item in value]
        for text in hidden if isinstance(value, str) else ():
            value = value.replace(text, f"{text.partition('=')[0]}=***")
        return value

    return {
        "legato": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": _first_field("/proc/cpuinfo", "model name") or platform.processor(),
            "threads": default_threads(),
            "memory_gib": _memory_gib(),
            "system": f"{platform.system()} {platform.release()}",
        },
        "command": shown(["legato", *sys.argv[1:]]),
        "flags": {name: shown(value) for name, value in flags.items() if name != "run" and value is not None},
        "seed": seed,
    }


def _commit() -> str | None:
    """Of the checkout that this package runs from; None where it was installed."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or not its owner: the version has to do
        return None


def _memory_gib() -> float | None:
    text = _first_field("/proc/meminfo", "MemTotal")
    return round(int(text.split()[0]) / (1 << 20), 1) if text else None


def _first_field(path: str, name: str) -> str:
    """The value of the first `name: value` line; empty where there is none."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
