"""What the control groups of this process say, in versions 1 and 2 of the kernel's interface."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["levels", "number"]


def levels(root: Path, controller: str) -> Iterator[Path]:
    """This process's control group for a controller and all above it, in both versions."""
    table = root / "proc/self/cgroup"
    for line in table.read_text().splitlines() if table.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / controller
        else:
            continue
        level = mount / path.lstrip("/")
        yield level
        while level != mount:
            level = level.parent
            yield level


def number(*files: Path) -> int | None:
    """What the first of the files that is there says; None where there is none, or no limit ("max" or -1)."""
    for file in files:
        with suppress(OSError):
            text = file.read_text().strip()
            return int(text) if text.isdigit() else None
    return None
