"""Error messages that may quote a damaged or hostile file."""

import os
from typing import NoReturn

from legato.core.errors import CheckpointError

__all__ = ["refuse", "shown"]

_LONGEST = 300


def shown(value: object) -> str:
    """A value from a file, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def refuse(file: str | os.PathLike[str], message: str) -> NoReturn:
    """Raises CheckpointError in one printable line, whatever names the file has put into `message`."""
    if len(message) > _LONGEST:
        message = message[: _LONGEST // 2] + " ... " + message[-_LONGEST // 2 :]
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
    raise CheckpointError(f"{os.fspath(file)}: {line}")
