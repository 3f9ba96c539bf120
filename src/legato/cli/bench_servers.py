"""`legato bench compare servers`: two servers under the same load, in turn."""

import argparse
import secrets
import sys
from typing import TYPE_CHECKING

from legato.cli.bench_load import add_flags, arrival, make_plan, measured, say_failures
from legato.cli.bench_shared import add_rounds, at_least_one, bounds
from legato.cli.flags import Commands, add_command
from legato.core.errors import LegatoError

if TYPE_CHECKING:
    from legato.bench.figures import Figures
    from legato.bench.load import Plan
    from legato.bench.servers import Compared

__all__ = ["add_to"]

_COLUMNS = ("median over the rounds", "first", "spread", "second", "spread", "first / second")


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "servers", "two servers that speak OpenAI's API under the same load, in turn", _run)
    parser.add_argument("urls", nargs=2, metavar="URL", help="http://HOST:PORT; flags, headers and key are for both")
    parser.add_argument(
        "--models", nargs=2, default=["", ""], metavar="NAME", help="to ask for; default: what each server reports"
    )
    add_rounds(parser)
    parser.add_argument("--json", metavar="FILE", help="write the figures; -: print them, and nothing else")
    add_flags(parser)


def _run(args: argparse.Namespace) -> int:
    from legato.bench.load import run
    from legato.bench.machine_info import header
    from legato.bench.report import print_rows, write_json
    from legato.bench.servers import compare, side_by_side

    at_least_one(args, "rounds")
    bounds("goodput", args.goodput)
    seed = secrets.randbits(32) if args.seed is None else args.seed
    plans = [_pair(args, seed + index) for index in range(args.rounds)]

    def measure(plan: "Plan") -> "Figures":
        outcome = run(plan)
        figures = measured(args, plan, outcome)
        where = f"{plan.model} at {plan.endpoint.host}:{plan.endpoint.port}"
        print(f"  {where}: {outcome.duration_s:.2f} s", file=sys.stderr, flush=True)
        for note in figures.notes:
            print(f"    note: {note}", file=sys.stderr, flush=True)
        say_failures(figures, outcome.records)
        if not figures.completed:
            raise LegatoError(f"no request succeeded with {where}")
        return figures

    first, second = compare(plans, measure)
    metrics = side_by_side(first, second)
    if args.json != "-":
        title = "\n".join([*(f"{name}: {url}" for name, url in zip(("first", "second"), args.urls, strict=True)), ""])
        print_rows(f"{title}{arrival(args, plans[0][0])}; {args.rounds} rounds, seed {seed}", _COLUMNS, _rows(metrics))
    if args.json:
        results = {
            "metrics": [metric.to_json() for metric in metrics],
            "rounds": [{"first": a.to_json(), "second": b.to_json()} for a, b in zip(first, second, strict=True)],
        }
        write_json(args.json, header(vars(args), seed, hidden=args.header), results)
    return 0


def _pair(args: argparse.Namespace, seed: int) -> "tuple[Plan, Plan]":
    """Of one round: the same requests at the same times."""
    first, second = (make_plan(args, *server, seed) for server in zip(args.urls, args.models, strict=True))
    return first, second


def _rows(metrics: "list[Compared]") -> list[list[str]]:
    rows = []
    for metric in metrics:
        cells = [metric.metric]
        for median, spread in zip(metric.medians, metric.spreads, strict=True):
            cells += [f"{median:,.2f}", "" if spread is None else f"{spread:.1%}"]
        rows.append([*cells, "" if metric.ratio is None else f"{metric.ratio:.2f}x"])
    return rows
