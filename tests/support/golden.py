"""Golden text files: compared byte for byte, rewritten with LEGATO_WRITE_GOLDEN=1 after a change on purpose."""

import os
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"


def check_text(name: str, text: str) -> None:
    path = FOLDER / name
    if os.environ.get("LEGATO_WRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text
