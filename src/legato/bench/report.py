"""Results for people (a table) and for programs (JSON)."""

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from legato.bench.figures import Figures, Summary, summarize
from legato.core.errors import ConfigError

__all__ = [
    "LABELS",
    "LATENCY_COLUMNS",
    "latency_rows",
    "print_figures",
    "print_rows",
    "summary_row",
    "write",
    "write_json",
]

LABELS = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL (chunk gaps)",
    "e2el": "E2EL",
    "send_lag": "send lag",
    "ttft_from_plan": "TTFT from plan",
    "e2el_from_plan": "E2EL from plan",
}
LATENCY_COLUMNS = ("", "mean", "p50", "p90", "p99")


def write(path: str, text: str) -> None:
    """Whole or not at all; "-" is the standard output."""
    if path == "-":
        sys.stdout.write(text)
        return
    target = Path(path)
    try:
        with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False, encoding="utf-8") as file:
            file.write(text)
        os.chmod(file.name, 0o644)
        os.replace(file.name, target)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def write_json(path: str, header: dict[str, Any], results: Any) -> None:
    write(path, json.dumps({**header, "results": results}, indent=1, default=str) + "\n")


def print_rows(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on the terminal: the first column is text, the others are numbers."""
    table = Table(box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console = _console()
    console.print(title, style="bold", soft_wrap=True)
    console.print(table)
    console.print()


def _console() -> Console:
    """No narrower than the tables are, so that a pipe gets whole lines."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=140)


def print_figures(title: str, figures: Figures) -> None:
    """Counts and rates, then the latencies, then what a reader has to know about them."""
    print_rows(title, ["", "value"], _counts(figures))
    if rows := latency_rows(figures):
        print_rows("latency, ms", LATENCY_COLUMNS, rows)
    for note in figures.notes:
        _console().print(f"note: {note}", soft_wrap=True)


def latency_rows(figures: Figures) -> list[list[str]]:
    """In milliseconds; a latency without values has no row."""
    rows = []
    for name, values in figures.latencies.items():
        if (summary := summarize(values)) is not None:
            rows.append(summary_row(name, summary))
    return rows


def summary_row(name: str, summary: Summary) -> list[str]:
    """Under LATENCY_COLUMNS. `name`: a key of LABELS."""
    return [LABELS[name], *(f"{value:,.2f}" for value in (summary.mean, summary.p50, summary.p90, summary.p99))]


def _counts(figures: Figures) -> list[list[str]]:
    seconds = figures.duration_s
    rows = [
        ["requests completed", f"{figures.completed}"],
        ["requests failed", f"{sum(figures.failed.values())} ({figures.failure_rate:.1%})"],
        *([f"  {kind}", f"{count}"] for kind, count in sorted(figures.failed.items())),
        ["duration, s", f"{seconds:.2f}"],
        ["prompt tokens", f"{figures.prompt_tokens}"],
        ["output tokens", f"{figures.output_tokens}"],
        ["requests/s", f"{figures.completed / seconds:.3f}"],
        ["output tok/s", f"{figures.output_tokens / seconds:.1f}"],
        ["total tok/s", f"{(figures.prompt_tokens + figures.output_tokens) / seconds:.1f}"],
        ["peak output tok/s", f"{figures.peak_output_per_s:.1f}"],
    ]
    if figures.goodput_per_s is not None:
        rows.append(["goodput, requests/s", f"{figures.goodput_per_s:.3f}"])
    hits = "not told by the server" if figures.cache_hit_rate is None else f"{figures.cache_hit_rate:.1%}"
    rows.append(["prefix cache hits", hits])
    rows.append(["client CPU, s", f"{figures.client_cpu_s:.2f} ({figures.client_cpu_s / seconds:.0%} of one core)"])
    return rows
