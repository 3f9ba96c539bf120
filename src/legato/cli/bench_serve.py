"""`legato bench serve`: load any server that speaks OpenAI's API. Flags are named as `vllm bench serve` names them."""

import argparse
import secrets
import sys
from typing import TYPE_CHECKING, Any

from legato.cli.bench_load import add_flags, arrival, make_plan, measured, say_failures
from legato.cli.bench_shared import bounds
from legato.cli.flags import Commands, add_command, whole
from legato.core.errors import LegatoError

if TYPE_CHECKING:
    from legato.bench.client import Record

__all__ = ["add_to"]


def add_to(kinds: Commands) -> None:
    parser = add_command(kinds, "serve", "load a server that speaks OpenAI's API, and measure latencies", _run)
    parser.add_argument("model", nargs="?", default="", metavar="MODEL", help="name to ask for; default: the server's")
    _add_address(parser.add_argument_group("Address"))
    add_flags(parser)
    _add_results(parser.add_argument_group("Results"))


def _add_address(group: Any) -> None:
    group.add_argument("--base-url", metavar="URL", help="http://HOST:PORT; overrides host and port")
    group.add_argument("--host", default="127.0.0.1", metavar="TEXT", help="address of the server (default: 127.0.0.1)")
    group.add_argument("--port", type=whole, default=8000, metavar="N", help="its port (default: 8000)")


def _add_results(group: Any) -> None:
    group.add_argument("--fail-on-errors", action="store_true", help="exit status 1 when a request failed")
    group.add_argument("--json", metavar="FILE", help="write the figures; -: print them, and nothing else")
    group.add_argument("--save-detailed", action="store_true", help="with each request in the JSON")
    group.add_argument("--html", metavar="FILE", help="write a report with plots")


def _run(args: argparse.Namespace) -> int:
    from legato.bench.html import serve_page
    from legato.bench.load import run
    from legato.bench.machine_info import header
    from legato.bench.report import print_figures, write, write_json

    seed = secrets.randbits(32) if args.seed is None else args.seed
    bounds("goodput", args.goodput)  # what is wrong there is said before anything is sent
    plan = make_plan(args, args.base_url or f"http://{args.host}:{args.port}", args.model, seed)
    outcome = run(plan, _Progress(len(plan.samples)))
    figures = measured(args, plan, outcome)
    head = header({**vars(args), "model": plan.model}, seed, hidden=args.header)
    subtitle = f"{plan.model} at {plan.endpoint.host}:{plan.endpoint.port}, {arrival(args, plan)}"
    if args.json != "-":
        print_figures(f"{subtitle}; seed {seed}", figures)
    if args.json:
        results = figures.to_json()
        if args.save_detailed:
            results["requests"] = [_detail(record, outcome.started_s) for record in outcome.records]
        write_json(args.json, head, results)
    if args.html:
        write(args.html, serve_page(figures, outcome, head, subtitle))
    say_failures(figures, outcome.records)
    if not figures.completed:
        raise LegatoError("no request succeeded")
    return 1 if figures.failed and args.fail_on_errors else 0


def _detail(record: "Record", start_s: float) -> dict[str, Any]:
    return {
        "planned_s": record.planned_s - start_s,
        "sent_s": record.sent_s - start_s,
        "ended_s": record.ended_s - start_s,
        "chunks_s": [at - start_s for at in record.chunks],
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
        "cached_tokens": record.cached_tokens,
        "error": record.error,
        "detail": record.detail,
    }


class _Progress:
    """A line on the terminal that counts what has ended; nothing in a pipe, and rarely, since it takes CPU time."""

    def __init__(self, total: int) -> None:
        self._total, self._ended = total, 0
        self._shown = sys.stderr.isatty()

    def __call__(self, record: "Record") -> None:
        self._ended += 1
        if self._shown and (self._ended % max(1, self._total // 50) == 0 or self._ended == self._total):
            end = "\n" if self._ended == self._total else ""
            print(f"\r{self._ended}/{self._total} requests", end=end, file=sys.stderr, flush=True)
