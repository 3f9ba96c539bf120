"""Fuzzes both readers of engine files: Python's, and the runtime's bounds checks."""

import functools
import hashlib
import io
import random
import struct
import tempfile
from pathlib import Path

from fuzz.fuzzer import main
from legato import _native
from legato.build.engine_file import Section, parse_engine
from legato.core.errors import CheckpointError
from support.tiny_engines import tiny_engine

__all__ = ["check", "data_begin", "make", "outcome", "seed_file", "sign"]

_WORDS = (0, 1, 2, 3, 31, 32, 63, 64, 65, 127, 128, 255, 1 << 15, (1 << 26) + 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)


@functools.cache
def seed_file() -> bytes:
    """A whole engine file of a one-layer model."""
    with tempfile.TemporaryDirectory() as folder:
        tiny = {"num_hidden_layers": 1, "vocab_size": 32, "hidden_size": 32, "intermediate_size": 32}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 16}
        path = tiny_engine(Path(folder) / "seed.legato", "mistral", dtype=lambda name: "Q4_1", **tiny, **heads)
        return path.read_bytes()


def data_begin() -> int:
    """Where the bytes of the tensors begin: changing those tests nothing."""
    return int(struct.unpack_from("<Q", seed_file(), 64 + 64 * (Section.DATA - 1) + 8)[0])


def sign(data: bytearray) -> None:
    """Makes the hashes of the header and of its readable sections fit again (docs/engine-file.md, Container)."""
    for at in (64, 128, 192):  # META, PLAN, TENSORS in the section table
        offset, size = struct.unpack_from("<QQ", data, at + 8)
        data[at + 24 : at + 56] = hashlib.sha256(data[offset : offset + size]).digest()
    data[32:64] = bytes(32)
    data[32:64] = hashlib.sha256(data[:320]).digest()


def make(rng: random.Random) -> bytes:
    """A variant with one to three words changed outside the tensors, and hashes that fit again."""
    data = bytearray(seed_file())
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(data_begin())
        kind = rng.random()
        if kind < 0.6:
            at -= at % 4
            word = rng.choice(_WORDS) if rng.random() < 0.7 else rng.getrandbits(32)
            struct.pack_into("<I", data, at, word)
        elif kind < 0.8:
            at -= at % 8
            struct.pack_into(
                "<Q", data, at, rng.choice((0, 64, len(data), len(data) - 64, 1 << 63, rng.getrandbits(64)))
            )
        else:
            data[at] ^= 1 << rng.randrange(8)
    sign(data)
    return bytes(data)


def outcome(data: bytes) -> tuple[str, str]:
    """What each reader says: "" where it accepts."""
    messages = []
    for read in (_read, _native.EngineFile.check):
        try:
            read(data)
            messages.append("")
        except (CheckpointError, _native.EngineFileError) as error:
            messages.append(str(error))
    return messages[0], messages[1]


def check(path: Path) -> None:
    """Both readers; the native one also where the other has refused."""
    data = path.read_bytes()
    _, native = outcome(data)
    _read(data)
    if native:
        raise CheckpointError(native)


def _read(data: bytes) -> None:
    parse_engine(Path("engine"), io.BytesIO(data), len(data))


if __name__ == "__main__":
    main("engine_file", check, make, [b"LEGATOEF", b"\0\0\0\1", b'"ops":', b"[[[[", b"null"])
