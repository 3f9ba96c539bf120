"""The engines that are compared: how each is started on a file of workloads. Only the one whose turn it is is awake."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from common import free_port, legato, run_json

from legato.bench.workloads import Job

__all__ = [
    "LLAMA_FLAGS",
    "Peer",
    "Run",
    "awake",
    "legato_run",
    "openvino",
    "peers_for",
    "threads",
    "turns",
    "write_work",
]

Run = Callable[[str], float]  # seconds that the workload of that name takes
DRIVERS = Path(__file__).parent / "peers"


@dataclass(frozen=True)
class Peer:
    """A peer in one format. needs: what must be there; without it the peer counts as not installed.

    command: interpreter, driver, and what follows the file of workloads.
    """

    kind: str  # openvino, llama, vllm
    name: str
    needs: tuple[Path, ...]
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()

    @property
    def installed(self) -> bool:
        return all(path.exists() for path in self.needs)

    @contextmanager
    def started(self, work: Path) -> Iterator[Run]:
        """Loaded and warm, asleep between its runs."""
        python, script, *rest = self.command
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                [python, str(DRIVERS / script), str(work), *rest],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env={**os.environ, **dict(self.env)}, start_new_session=True,
            )  # fmt: skip

            def answer() -> str:
                assert process.stdout is not None
                for line in process.stdout:
                    if line.startswith("RESULT "):
                        return line.split()[1]
                log.seek(0)
                raise SystemExit(f"{self.name} failed:\n{log.read().decode(errors='replace')[-4000:]}")

            def run(name: str) -> float:
                assert process.stdin is not None
                os.killpg(process.pid, signal.SIGCONT)
                process.stdin.write(f"{name}\n")
                process.stdin.flush()
                seconds = float(answer())
                os.killpg(process.pid, signal.SIGSTOP)
                return seconds

            try:
                answer()
                os.killpg(process.pid, signal.SIGSTOP)
                yield run
            finally:
                _end(process)


def _end(process: "subprocess.Popen[str]") -> None:
    """Ends a driver and what it started: its standard input closes, then it has some seconds."""
    with suppress(subprocess.TimeoutExpired, OSError):
        os.killpg(process.pid, signal.SIGCONT)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def threads() -> int:
    return len(os.sched_getaffinity(0))


# -c: 2,048 positions for each slot. The rest is what llama.cpp documents for throughput on a CPU.
LLAMA_FLAGS = ("-np", "64", "-c", "131072", "-fa", "on", "--no-webui")


def _llama(peers: Path, file: str) -> Peer:
    server = peers / "llama" / "bin" / "llama-server"
    count = str(threads())
    flags = (str(peers / file), str(server), str(free_port()), *LLAMA_FLAGS, "-t", count, "-tb", count)
    return Peer(
        "llama", f"llama.cpp {file.split('.')[0]}", (server, peers / file), (sys.executable, "run_llama.py", *flags)
    )


def openvino(peers: Path, folder: Path, name: str, *properties: str) -> Peer:
    """OpenVINO GenAI on the model in `folder`. properties: NAME=VALUE of its CPU plugin."""
    python = peers / "openvino" / "bin" / "python"
    command = (str(python), "run_openvino.py", str(folder), *properties)
    return Peer("openvino", f"OpenVINO {name}", (python, folder), command)


def _vllm(peers: Path) -> Peer:
    python, preload = peers / "vllm" / "bin" / "python", peers / "vllm" / "lib" / "libiomp5.so"
    env = {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "LD_PRELOAD": str(preload),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    command = (str(python), "run_vllm.py", str(peers / "hf"))
    return Peer("vllm", "vLLM bf16", (python, preload, peers / "hf"), command, tuple(env.items()))


def peers_for(format: str, peers: Path) -> list[Peer]:
    """The candidates for the best peer of a format, in the folder that peers/install.sh filled."""
    return {
        "int8": [openvino(peers, peers / "ov_int8", "int8"), _llama(peers, "Q8_0.gguf"), _vllm(peers)],
        "bf16": [
            openvino(peers, peers / "ov_fp16", "bf16", "INFERENCE_PRECISION_HINT=bf16"),
            _vllm(peers),
            _llama(peers, "BF16.gguf"),
        ],
        "auto": [_llama(peers, "Q4_1.gguf"), openvino(peers, peers / "ov_int4", "int4")],
    }[format]


def legato_run(format: str, flags: Sequence[str]) -> Run:
    """Legato by its own benchmark, a process per run."""

    def run(name: str) -> float:
        command = legato("bench", "throughput", "--format", format, "--rounds", 1, "--json", "-", *flags)
        seconds: float = run_json([*command, "--workloads", name])["results"][0]["seconds"][0]
        return seconds

    return run


def turns(
    runs: dict[str, Run], names: Sequence[str], rounds: int, progress: Callable[[str], None]
) -> dict[str, dict[str, list[float]]]:
    """Seconds by engine and workload: engine after engine for each workload, `rounds` times."""
    seconds: dict[str, dict[str, list[float]]] = {engine: {name: [] for name in names} for engine in runs}
    for index in range(rounds):
        for name in names:
            for engine, run in runs.items():
                seconds[engine][name].append(run(name))
                progress(f"round {index + 1}, {name}, {engine}: {seconds[engine][name][-1]:.2f} s")
    return seconds


def write_work(stack: ExitStack, work: Mapping[str, Sequence[Job]]) -> Path:
    """The workloads as a file for the drivers, which ends with `stack`."""
    path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "work.json"
    plain = {
        name: [{"prompt": job.prompt, "max_tokens": job.max_tokens} for job in jobs] for name, jobs in work.items()
    }
    path.write_text(json.dumps(plain))
    return path


def awake(stack: ExitStack, peers: Sequence[Peer], work: Path) -> dict[str, Run]:
    """The peers by name, started; they end with `stack`."""
    return {peer.name: stack.enter_context(peer.started(work)) for peer in peers}
