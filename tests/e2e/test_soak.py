"""A short soak in a server process of its own; `python benchmarks/soak.py` is the long one."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def test_a_short_soak_ends_at_the_baseline(tmp_path: Path) -> None:
    """F06, oracle 5 over HTTP, with every kind of request: memory, threads, file descriptors and blocks."""
    command = (sys.executable, str(SCRIPT), "--requests", "100", "--json", str(tmp_path / "soak.json"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "soak.json").read_text())
    assert sum(figures["requests"].values()) == 100
    assert len(figures["requests"]) == 10
    assert {"legato-engine", "legato-step"} <= set(figures["before"]["threads"])
    assert set(figures["after"]["threads"]) - set(figures["before"]["threads"]) <= {"legato-aside"}


def test_threads_that_are_more_than_they_were_are_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    leftovers = importlib.import_module("soak").leftovers
    held = dict.fromkeys(("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "resident_mib"), 0.0)
    before = {**held, "threads": {"legato": 1, "legato-engine": 1, "legato-aside": 1}}
    assert leftovers(before, {**held, "threads": {"legato": 1, "legato-engine": 1, "legato-aside": 4}}) == []
    after = {**held, "resident_mib": 90.0, "threads": {"legato": 3, "legato-engine": 1, "legato-aside": 5}}
    assert leftovers(before, after) == [
        "resident_mib: 90, was 0",
        "threads called legato: 3, was 1",
        "threads called legato-aside: 5, was 1",
    ]
