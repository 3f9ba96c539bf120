"""A small mutation fuzzer.

A target takes the path of a file and either returns or raises CheckpointError; anything else, more than 5 s, or more
than 512 MiB of address space beyond the start is a finding. Inputs that end at a place in the code where no other
did (the lines of the traceback, or success) join the corpus; of two that end at the same place the smaller one stays.
"""

import argparse
import hashlib
import os
import random
import resource
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from legato.core.errors import CheckpointError

__all__ = ["CORPUS", "MemoryFile", "Target", "main", "mutate", "outcome"]

Target = Callable[[Path], None]
Maker = Callable[[random.Random], bytes]  # a valid or nearly valid file

CORPUS = Path(__file__).parents[1] / "corpus"
_SECONDS, _BYTES = 5, 512 << 20
_NUMBERS = [0, 1, 2, 7, 8, 9, 31, 32, 127, 128, 255, 2**15, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32]
_NUMBERS += [2**40, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1]


class MemoryFile:
    """A file in memory that can be opened by its path; many times faster to rewrite than one on disk."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("input")
        self.path = Path(f"/proc/self/fd/{self._descriptor}")

    def write(self, raw: bytes) -> Path:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, raw, 0)
        return self.path


def mutate(rng: random.Random, raw: bytes, others: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """One to four random changes: bits, bytes, numbers of 1 to 8 bytes, cuts, copies, known words, splices."""
    out = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(8)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = rng.randrange(256)
        elif kind == 2:
            size = rng.choice((1, 2, 4, 8))
            out[at : at + size] = (rng.choice(_NUMBERS) & (256**size - 1)).to_bytes(size, "little")
        elif kind == 3:
            del out[at:]
        elif kind == 4:
            del out[at : at + rng.randrange(1, 33)]
        elif kind == 5:
            start = rng.randrange(len(out) + 1)
            out[at:at] = out[start : start + rng.randrange(1, 65)]
        elif kind == 6:
            word = rng.choice(words)
            out[at : at + rng.choice((0, len(word)))] = word
        elif kind == 7:
            other = rng.choice(others)
            out[at:] = other[rng.randrange(len(other) + 1) :]
    return bytes(out)


def outcome(target: Target, path: Path) -> str:
    """Where the target ended: "good", or the lines of the code that refused the file."""
    try:
        target(path)
    except CheckpointError as error:
        if not str(error).isprintable():
            raise AssertionError("the message is not one printable line") from error
        places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        return " ".join(f"{Path(file).name}:{line}" for file, line in places if "/legato/" in file)
    return "good"


def _too_slow(_: int, __: object) -> None:
    raise TimeoutError(f"more than {_SECONDS} s")


def _limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _BYTES, resource.RLIM_INFINITY))


def main(name: str, target: Target, make: Maker, words: Sequence[bytes]) -> None:
    """Fuzzes for --seconds; writes the corpus and, if there is one, the input that failed."""
    parser = argparse.ArgumentParser(description=f"fuzz the {name} reader")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    best: dict[str, bytes] = {}
    pool = [path.read_bytes() for path in sorted(folder.iterdir())] + [make(rng) for _ in range(20)]
    queue = list(pool)
    signal.signal(signal.SIGALRM, _too_slow)
    _limit_memory()
    count, end = 0, time.monotonic() + options.seconds
    file = MemoryFile()
    while queue or time.monotonic() < end:
        raw = queue.pop() if queue else mutate(rng, rng.choice(pool) if rng.random() < 0.5 else make(rng), pool, words)
        signal.alarm(_SECONDS)
        try:
            place = outcome(target, file.write(raw))
        except BaseException:
            Path(f"crash.{name}").write_bytes(raw)
            print(f"{count} inputs; the one that failed is in crash.{name}")
            raise
        finally:
            signal.alarm(0)
        count += 1
        if place not in best or len(raw) < len(best[place]):
            best[place] = raw
            pool.append(raw)
    for old in folder.iterdir():
        old.unlink()
    for raw in best.values():
        (folder / hashlib.sha256(raw).hexdigest()[:12]).write_bytes(raw)
    print(f"{name}: {count} inputs, {len(best)} places, corpus of {sum(map(len, best.values()))} bytes, no finding")
