"""What the scripts here share: commands that print JSON, servers, and results as benchmarks/results/NAME.json.

A result file: legato, commit, date, machine (with the ISA level), command, and `figures` by the key of their row in
targets.py. A figure: value, unit, target, hit (null where it is only reported), rounds (raw, by engine), median and
spread of each, what the rounds are, and notes.
"""

import argparse
import json
import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from targets import TARGETS, shown

from legato.bench.machine import default_level
from legato.bench.machine_info import header
from legato.bench.report import write
from legato.bench.throughput import spread

__all__ = ["RESULTS", "Result", "arguments", "free_port", "legato", "peers_dir", "run", "run_json", "say", "serving"]

RESULTS = Path(__file__).parent / "results"


def legato(*args: object) -> list[str]:
    """The command `legato ...` of the interpreter that runs this."""
    return [sys.executable, "-m", "legato", *map(str, args)]


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the flags of every script. From here on SIGTERM ends the script as Ctrl-C does, its peers too."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    return parser


def peers_dir(parser: argparse.ArgumentParser) -> None:
    default = os.environ.get("LEGATO_PEERS")
    parser.add_argument(
        "--peers", type=Path, default=default, required=default is None,
        help="folder that peers/install.sh filled (default: $LEGATO_PEERS)",
    )  # fmt: skip


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run_json(command: Sequence[object], env: Mapping[str, str] | None = None) -> Any:
    """What a command prints, as JSON."""
    return json.loads(run(command, env))


def run(command: Sequence[object], env: Mapping[str, str] | None = None) -> str:
    """What a command prints. Its messages go to the terminal only where it fails."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, env={**os.environ, **(env or {})}
    )
    if done.returncode:
        raise SystemExit(f"{shlex.join(map(str, command))} failed:\n{done.stderr[-4000:]}")
    return done.stdout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving(
    command: Sequence[object], url: str, timeout_s: float = 300, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A server process, from when `url` answers 200 until it has ended."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [str(part) for part in command], stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}
        )
        try:
            deadline = time.monotonic() + timeout_s
            while not _answers(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    text = log.read().decode(errors="replace")[-4000:]
                    raise SystemExit(f"{shlex.join(map(str, command))} does not serve:\n{text}")
                time.sleep(0.2)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


class Result:
    """Collects the figures of one script, and writes them when it is done."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        self._path = args.results / f"{name}.json"
        self.figures: dict[str, dict[str, Any]] = {}

    def add(
        self,
        key: str,
        value: float,
        rounds: Mapping[str, Sequence[float]],
        of_rounds: str,
        notes: Sequence[str] = (),
    ) -> None:
        """rounds: the measured values of each engine, in the order they were measured; of_rounds says what they are."""
        target = TARGETS[key]
        self.figures[key] = {
            "value": value,
            "unit": target.unit,
            "target": target.text,
            "hit": target.holds(value),
            "of_rounds": of_rounds,
            "rounds": {name: list(values) for name, values in rounds.items()},
            "median": {name: statistics.median(values) for name, values in rounds.items()},
            "spread": {name: spread(values) for name, values in rounds.items()},
            "notes": list(notes),
        }
        verdict = {True: "hit", False: "miss", None: "reported"}[target.holds(value)]
        say(f"{key}: {shown(value, target.unit)} ({target.text}: {verdict})")

    def save(self) -> None:
        head = header({}, None)
        del head["seed"], head["flags"]
        head["machine"]["isa"] = default_level()
        head["command"] = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *_shown_arguments()])
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write(str(self._path), json.dumps({**head, "figures": self.figures}, indent=1) + "\n")
        say(f"wrote {self._path}")


def _shown_arguments() -> list[str]:
    """Of this process, with folders of this machine left out."""
    shown_ones = []
    for before, argument in zip(sys.argv, sys.argv[1:], strict=False):
        shown_ones.append("DIR" if before in ("--peers", "--results", "--work") else argument)
    return shown_ones
