"""Start-up and memory of `legato serve`, int8, engine file built and in the page cache.

python benchmarks/start.py [--rounds 5]

Start: from before the process is created to the first 200 of /ready, polled every 2 ms; /ready means that one token
has run through the whole plan. Memory: after `mixed` over HTTP, peak RSS less the engine file and less the resident
pages of the KV pool, which is found in /proc as the mapping that holds KV_BYTES.
"""

import statistics
import subprocess
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from common import Result, arguments, free_port, legato, run_json, say

from legato.core.config import ModelConfig
from legato.engine.start import engine_file

MIB = 1 << 20
KV_BYTES = 2 << 30  # larger than any other mapping of the process


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(rounds=5)
    args = parser.parse_args()
    file = engine_file(ModelConfig(format="int8")).path
    file.read_bytes()
    seconds: list[float] = []
    rests: list[float] = []
    for index in range(args.rounds + 1):  # the first one warms the page cache
        took, peak, kv = once(load=index == 1 or index == args.rounds)
        if index:
            seconds.append(took)
        if kv is not None:
            rests.append((peak - kv - file.stat().st_size) / MIB)
            say(f"peak RSS {peak / MIB:.0f} MiB, of that KV {kv / MIB:.0f}, file {file.stat().st_size / MIB:.0f}")
        say(f"start {index}: {took:.3f} s")
    result = Result("start", args)
    result.add("start", statistics.median(seconds), {"Legato": seconds}, "s")
    notes = ["the file counts whole; KV as far as it was touched, by 64 streams of `mixed`"]
    result.add("rss", statistics.median(rests), {"Legato": rests}, "MiB", notes)
    result.save()


def once(load: bool) -> tuple[float, int, int | None]:
    """Seconds to /ready; peak RSS and touched KV in bytes, after `mixed` where `load` says so (else None)."""
    port = free_port()
    flags = ("--port", port, "--kv-cache-memory", KV_BYTES, "--no-enable-prefix-caching", "--log-level", "error")
    start = time.perf_counter()
    process = subprocess.Popen(
        legato("serve", "--format", "int8", *flags), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not ready(port):
            if process.poll() is not None:
                raise SystemExit(f"legato serve ended with status {process.returncode}")
            time.sleep(0.002)
        took = time.perf_counter() - start
        kv = None
        if load:
            command = ("bench", "serve", "--port", port, "--dataset-name", "mixed", "--seed", 0, "--ignore-eos")
            run_json(legato(*command, "--max-concurrency", 64, "--fail-on-errors", "--json", "-"))
            kv = resident_kv(process.pid)
        return took, peak_rss(process.pid), kv
    finally:
        process.terminate()
        process.wait()


def ready(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def peak_rss(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


def resident_kv(pid: int) -> int:
    """Bytes in memory of the one mapping that is large enough for the KV pool."""
    size = 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if line.startswith("Size:"):
            size = int(line.split()[1]) * 1024
        elif line.startswith("Rss:") and size >= KV_BYTES * 0.99:
            return int(line.split()[1]) * 1024
    raise SystemExit("no mapping holds the KV pool")


if __name__ == "__main__":
    main()
