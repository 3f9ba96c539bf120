"""What the drivers of the peers share: load once, then run a workload whenever its name comes in.

A driver prints "RESULT ready" when its model is loaded and warm, and "RESULT seconds" for each name on its standard
input. Other lines are the engine's own.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

__all__ = ["Job", "take_turns"]


class Job(TypedDict):
    """One request: prompt token ids, and how many tokens to generate."""

    prompt: list[int]
    max_tokens: int


def take_turns(work: str, run: Callable[[list[Job]], float]) -> None:
    """work: a JSON file of {name: jobs}. run: seconds that all jobs took together, greedy, none ended early."""
    workloads: dict[str, list[Job]] = json.loads(Path(work).read_text())
    run([{"prompt": list(range(100, 132)), "max_tokens": 4}])
    print("RESULT ready", flush=True)
    for line in sys.stdin:
        print(f"RESULT {run(workloads[line.strip()])}", flush=True)
