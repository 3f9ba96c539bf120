"""Writes tests/golden/windows.npz: 16 windows of 1,024 tokens of English, docstrings of Python 3.11's standard library.

usage: make_windows.py MODEL.gguf      Other versions of Python have other docstrings: they leave the file as it is.
"""

import importlib
import inspect
import sys
from pathlib import Path

import numpy as np

from legato.tokenizer.assets import assets_from_gguf
from legato.tokenizer.tokenizer import Tokenizer
from legato.weights.gguf_source import GgufSource

GOLDEN = Path(__file__).parents[1] / "golden" / "windows.npz"
MODULES = (
    "argparse", "asyncio", "collections", "decimal", "email", "http", "json", "logging", "multiprocessing", "pathlib",
    "random", "re", "socket", "sqlite3", "statistics", "tarfile", "threading", "typing", "unittest", "urllib",
)  # fmt: skip
WINDOW, WINDOWS, SHORTEST = 1024, 16, 200


def text() -> str:
    """Docstrings of classes and functions that are longer than 200 characters, sorted."""
    members = (value for name in MODULES for _, value in inspect.getmembers(importlib.import_module(name)))
    documented = (
        inspect.getdoc(value) or "" for value in members if inspect.isclass(value) or inspect.isfunction(value)
    )
    return "\n\n".join(sorted({doc for doc in documented if len(doc) > SHORTEST}))


def main() -> None:
    if sys.version_info[:2] != (3, 11):
        print(f"{GOLDEN.name} is left as it is: its text is Python 3.11's, not {sys.version.split()[0]}'s")
        return
    source = GgufSource(Path(sys.argv[1]))
    ids = Tokenizer(assets_from_gguf(source.metadata)).encode(text())[: WINDOW * WINDOWS]
    np.savez_compressed(GOLDEN, windows=np.array(ids, np.uint16).reshape(WINDOWS, WINDOW))
    print(f"{GOLDEN}: {GOLDEN.stat().st_size} bytes")


if __name__ == "__main__":
    main()
