"""A short soak in a server process of its own; `python benchmarks/soak.py` is the long one."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def test_a_short_soak_ends_at_the_baseline(tmp_path: Path) -> None:
    """F06, oracle 5 over HTTP, with every kind of request: memory, threads, file descriptors and blocks."""
    command = (sys.executable, str(SCRIPT), "--requests", "100", "--json", str(tmp_path / "soak.json"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "soak.json").read_text())
    assert sum(figures["requests"].values()) == 100
    assert len(figures["requests"]) == 10
