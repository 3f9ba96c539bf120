"""How fast the default model is packed into an engine file on one thread: MB of checkpoint per second.

python benchmarks/build.py [--rounds 3] [--format int8]

The clock runs from an open checkpoint to the finished file. Opening it (the tokenizer in its header is the most of it)
and `legato build` as a whole are in the notes.
"""

import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from common import Result, arguments, legato, say

from legato.build.engine import build_engine
from legato.core.config import ModelConfig
from legato.weights.cache_dir import default_cache_dir
from legato.weights.open import open_checkpoint


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--format", default="int8", choices=("int8", "bf16", "auto"))
    args = parser.parse_args()
    core = min(os.sched_getaffinity(0))
    rates: list[float] = []
    opening: list[float] = []
    whole: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for index in range(args.rounds):
            size, opened, packed = in_process(args.format, Path(folder) / f"{index}.legato", core)
            opening.append(opened)
            rates.append(size / packed / 1e6)
            whole.append(as_command(args.format, Path(folder) / f"{index}", core))
            say(f"round {index + 1}: open {opened:.2f} s, pack {packed:.2f} s, command {whole[-1]:.2f} s")
    result = Result("build", args)
    opened, command = statistics.median(opening), statistics.median(whole)
    notes = [f"{size / 1e6:.1f} MB to {args.format}; on one core opening the checkpoint takes {opened:.2f} s"]
    notes += [f"`legato build` as a whole takes {command:.2f} s on one core"]
    result.add("build", statistics.median(rates), {"Legato": rates}, "MB/s", notes)
    result.save()


def in_process(format: str, path: Path, core: int) -> tuple[int, float, float]:
    """Bytes of the checkpoint, seconds to open it, seconds to build the engine file."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        start = time.perf_counter()
        with open_checkpoint("", revision=None, cache_dir=default_cache_dir()) as checkpoint:
            opened = time.perf_counter()
            build_engine(ModelConfig(format=format), checkpoint, path, threads=1)
            built = time.perf_counter()
    finally:
        os.sched_setaffinity(0, cores)
    return checkpoint_bytes(), opened - start, built - opened


def checkpoint_bytes() -> int:
    [file] = (default_cache_dir() / "models").glob("SmolLM2-135M-Instruct/*.gguf")
    return file.stat().st_size


def as_command(format: str, folder: Path, core: int) -> float:
    start = time.perf_counter()
    command = ["taskset", "-c", str(core), *legato("build", "--format", format, "-o", folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
