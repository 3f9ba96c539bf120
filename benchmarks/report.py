"""docs/benchmarks.md from the results in benchmarks/results and the prose in benchmarks/report.md.in.

python benchmarks/report.py [--results DIR] [--output FILE]

In the prose, {{table}} becomes the table of targets, {{misses}} what does not reach its target, {{rounds}} the measured
values, {{runs}} which command made which row on which machine. A row without a result is "not measured"; of a row in
several files, the last file by name counts. Why a row misses, and what is tried next, is written by hand in
misses.toml, by the row's key.
"""

import argparse
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from targets import GROUPS, TARGETS, Target, shown

HERE = Path(__file__).parent
Figure = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--output", type=Path, default=HERE.parent / "docs" / "benchmarks.md")
    args = parser.parse_args()
    runs = [json.loads(path.read_text()) for path in sorted(args.results.glob("*.json"))]
    figures = {key: figure for run in runs for key, figure in run["figures"].items()}
    if unknown := sorted(figures.keys() - TARGETS.keys()):
        raise SystemExit(f"results without a row in targets.py: {', '.join(unknown)}")
    text = (HERE / "report.md.in").read_text()
    parts = {"table": table(figures), "misses": misses(figures), "rounds": rounds(figures), "runs": listed(runs)}
    for name, lines in parts.items():
        text = text.replace("{{" + name + "}}", "\n".join(lines))
    args.output.write_text(text)


def table(figures: Mapping[str, Figure]) -> Iterator[str]:
    """One table per group: every row of targets.py, measured or not."""
    for group, rows in GROUPS.items():
        yield f"### {group}"
        yield "| | format | against | target | measured | |"
        yield "|---|---|---|---|---|---|"
        for key, target in rows.items():
            cells = [target.what, target.format, target.against, target.text, *outcome(figures.get(key), target)]
            yield f"| {' | '.join(cells)} |"
        yield ""


def outcome(figure: Figure | None, target: Target) -> tuple[str, str]:
    """The measured value and the verdict, by today's target."""
    if figure is None:
        return "not measured", ""
    verdict = {True: "hit", False: "**miss**", None: ""}[target.holds(figure["value"])]
    return shown(figure["value"], target.unit), verdict


def misses(figures: Mapping[str, Figure]) -> Iterator[str]:
    reasons = tomllib.loads((HERE / "misses.toml").read_text())
    below = [key for key in TARGETS if key in figures and TARGETS[key].holds(figures[key]["value"]) is False]
    for key in below:
        target = TARGETS[key]
        value = shown(figures[key]["value"], target.unit)
        yield f"- {target.what}, {target.format}: {value}, {target.text}. {reasons.get(key, 'Not explained yet.')}"
    if not below:
        yield "None of the measured rows." if figures else "Nothing is measured yet."


def rounds(figures: Mapping[str, Figure]) -> Iterator[str]:
    """Medians and spreads by engine; the raw rounds are in the JSON."""
    yield "| | engine | median | spread | rounds | |"
    yield "|---|---|---|---|---|---|"
    for key, target in TARGETS.items():
        if (figure := figures.get(key)) is None:
            continue
        first = f"{target.what}, {target.format}"
        notes = "; ".join(figure["notes"])
        for engine, values in figure["rounds"].items():
            median = f"{figure['median'][engine]:,.5g} {figure['of_rounds']}"
            yield f"| {first} | {engine} | {median} | {figure['spread'][engine]:.1%} | {len(values)} | {notes} |"
            first = notes = ""


def listed(runs: list[dict[str, Any]]) -> Iterator[str]:
    for run in runs:
        machine = run["machine"]
        where = f"{machine['threads']} threads of {machine['cpu']}, {machine['isa']}, {machine['memory_gib']} GiB"
        yield f"- `{run['command']}`: {run['date'][:10]}, commit {run['commit']}; {where}"


if __name__ == "__main__":
    main()
