"""Fuzzes the safetensors reader."""

import json
import random
import struct
from pathlib import Path
from typing import Any

from fuzz.fuzzer import main
from legato.weights.safetensors import SafetensorsFile

__all__ = ["WORDS", "check", "make"]

SIZES = {"F32": 4, "F16": 2, "BF16": 2}
STRANGE: list[Any] = [None, True, -1, 0, 1.5, 1e300, 2**63, 10**30, "", "I64", [], [1], [0, 0], {}, {"dtype": "F32"}]
WORDS = [b"dtype", b"shape", b"data_offsets", b"__metadata__", b"F32", b"BF16", b"I64", b"[[[[", b"null", b"1e999"]
WORDS += [b"NaN", b"-1", b"\\ud800", b"9" * 100, b'{"', b'":', b"],", b"\0"]


def make(rng: random.Random) -> bytes:
    """A few tensors, with one fact in two files wrong."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}} if rng.random() < 0.5 else {}
    offset = 0
    for i in range(rng.randrange(1, 5)):
        dtype = rng.choice(list(SIZES))
        shape = [rng.randrange(1, 5) for _ in range(rng.randrange(4))]
        size = SIZES[dtype]
        for n in shape:
            size *= n
        header[f"layer.{i}"] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    if rng.random() < 0.5:
        entry = header[rng.choice([name for name in header if name != "__metadata__"])]
        place, key = rng.choice(((entry, rng.choice(list(entry))), (header, rng.choice(list(header)))))
        place[key] = rng.choice(STRANGE)
    if rng.random() < 0.1:
        header["again"] = header["layer.0"]
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + rng.randbytes(offset)


def check(path: Path) -> None:
    """Reads all there is."""
    file = SafetensorsFile(path)
    size = path.stat().st_size
    assert sum(file.read(name).data.nbytes for name in file.tensors()) <= size


if __name__ == "__main__":
    main("safetensors", check, make, WORDS)
