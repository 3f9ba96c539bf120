"""A burst of long prompts on a small pool, in a control group with a limit: does memory stay within the printed table?

python benchmarks/memory_bound.py [--rounds 1] [--prompts 64] [--tokens 4000] [--blocks 400] [--limit-mib 1024]

Every prompt is of its own, all are sent at once, and each must be answered or refused with 429. The figure: the most
anonymous memory that the server ever has during the burst, over what it planned (weights, workspace, tables, scratch,
KV pool) and what Python with Legato's modules and the model's tokenizer takes. Mapped files are not counted: the
kernel takes their pages back when it needs them. The server runs in a control group of its own, below this process's,
where one can be made (version 2 or 1); the note says whether, and how often its limit was hit.
"""

import asyncio
import re
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from common import Result, arguments, free_port, legato, say, serving

from legato.core.config import ModelConfig
from legato.engine.start import engine_file
from legato.tokenizer.tokenizer import Tokenizer

HERE = Path(__file__).parent
MIB = 1 << 20
MODULES = "legato.cli.serve, legato.engine.start, legato.server.lifecycle, legato.server.app"
MOUNT = Path("/sys/fs/cgroup")


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(rounds=1)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=4000, help="per prompt")
    parser.add_argument("--blocks", type=int, default=400, help="of the KV pool, 16 tokens each")
    parser.add_argument("--limit-mib", type=int, default=1024)
    args = parser.parse_args()
    base = without_engine()
    say(f"all but the engine: {base / MIB:.0f} MiB")
    shares, notes = [], []
    for _ in range(args.rounds):
        with control_group(args.limit_mib * MIB) as group:
            port = free_port()
            flags = ("--format", "int8", "--port", port, "--num-blocks", args.blocks, "--log-level", "error")
            url = f"http://127.0.0.1:{port}/ready"
            with serving(inside(group, legato("serve", *flags)), url) as server:
                planned = planned_bytes(port)
                ends, peak = asyncio.run(burst(port, server.pid, args.prompts, args.tokens))
            shares.append(peak / (planned + base))
            limited = (
                "no control group could be made" if group is None else f"limit {args.limit_mib} MiB: {hits(group)}"
            )
        told = ", ".join(f"{count} with {status}" for status, count in sorted(ends.items()))
        notes.append(f"{told}; planned {planned / MIB:.0f} MiB, peak {peak / MIB:.0f} MiB; {limited}")
        say(notes[-1])
    result = Result("memory_bound", args)
    result.add("memory-bound", max(shares), {"Legato": [100 * share for share in shares]}, "% of table and base", notes)
    result.save()


async def burst(port: int, pid: int, prompts: int, tokens: int) -> tuple[Counter[int], int]:
    """How many answers had which status, and the most anonymous memory meanwhile."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=None, limits=httpx.Limits()) as http:
        bodies = [
            {"prompt": [(i * 31 + p * 7) % 40000 for p in range(tokens)], "max_tokens": 8, "ignore_eos": True}
            for i in range(prompts)
        ]
        answers = asyncio.gather(*(http.post("/v1/completions", json=body) for body in bodies))
        peak = anonymous(pid)
        while not answers.done():
            await asyncio.wait([answers], timeout=0.05)
            peak = max(peak, anonymous(pid))
    ends = Counter(answer.status_code for answer in answers.result())
    if set(ends) - {200, 429}:
        raise SystemExit(f"some requests failed: {ends}")
    return ends, peak


def planned_bytes(port: int) -> float:
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    return sum(map(float, re.findall(r"^legato:memory_planned_bytes\{.*?\} (\S+)$", text, re.MULTILINE)))


def anonymous(pid: int | str) -> int:
    """Bytes of a process that no file stands behind, swapped ones included."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    names = ("RssAnon:", "RssShmem:", "VmSwap:")
    return sum(int(line.split()[1]) for line in lines if line.startswith(names)) * 1024


def without_engine() -> int:
    """Anonymous memory of all but the engine."""
    code = f"import {MODULES}; from memory_bound import tokenizer_only; print(tokenizer_only())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=HERE)
    return int(done.stdout)


def tokenizer_only() -> int:
    tokenizer = Tokenizer(engine_file(ModelConfig(format="int8")).text_assets)
    tokenizer.encode("warm")
    return anonymous("self")


@contextmanager
def control_group(limit: int) -> Iterator[Path | None]:
    """A new memory control group with this limit in bytes; None where none can be made."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, own = line.split(":", 2)
        if "memory" in controllers.split(","):
            parent, file = MOUNT / "memory" / own.lstrip("/"), "memory.limit_in_bytes"
        elif not controllers and (MOUNT / "cgroup.controllers").exists():
            parent, file = MOUNT / own.lstrip("/"), "memory.max"
        else:
            continue
        group = parent / f"legato-{uuid.uuid4().hex[:8]}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / file).write_text(str(limit))
        except OSError:
            group.rmdir()
            continue
        try:
            yield group
        finally:
            group.rmdir()
        return
    yield None


def inside(group: Path | None, command: list[str]) -> list[str]:
    """The command, moved into the group before it starts."""
    if group is None:
        return command
    return ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group), *command]


def hits(group: Path) -> str:
    """How often the limit was reached, which makes the kernel reclaim file pages; at worst it would kill."""
    events = group / "memory.events"
    if events.exists():
        return events.read_text().replace("\n", ", ").strip(", ")
    return f"reached {(group / 'memory.failcnt').read_text().strip()} times"


if __name__ == "__main__":
    main()
