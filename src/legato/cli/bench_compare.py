"""`legato bench compare`: two or more ways to serve, in one sitting and in turn."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from legato.cli import bench_servers
from legato.cli.bench_shared import (
    SEED,
    add_engine,
    add_rounds,
    add_workloads,
    at_least_one,
    engine_header,
    say,
    say_windows,
    title,
    workloads,
)
from legato.cli.flags import Commands, add_command, read, whole
from legato.core.config import EngineConfig
from legato.core.errors import ConfigError

if TYPE_CHECKING:
    from legato.bench.formats import Format, FormatRun
    from legato.bench.quality import Quality

__all__ = ["add_to"]

_FORMAT_COLUMNS = ("workload", "format", "weights", "KV", "output tok/s", "total tok/s", "to the first", "spread")


def add_to(kinds: Commands) -> None:
    parser = kinds.add_parser("compare", help="batching policies, formats, or two servers, in turn")
    commands = parser.add_subparsers(title="comparisons", metavar="COMPARISON", required=True)
    policies = add_command(
        commands, "policies", "continuous against static batching, on answers with a heavy tail", _policies
    )
    policies.add_argument(
        "--num-requests",
        type=whole,
        default=512,
        metavar="N",
        help="length of the run (default: 512); the end of a run, when no request waits for a place, is no gain",
    )
    add_rounds(policies)
    policies.add_argument("--html", metavar="FILE", help="write a report with plots")
    add_engine(policies, "policy", "static_padding", "executor")
    formats = add_command(commands, "formats", "speed, and closeness to fp32, of several formats of a model", _formats)
    formats.add_argument(
        "--formats",
        nargs="+",
        default=["auto", "int8"],
        metavar="NAME",
        help="WEIGHTS or WEIGHTS/KV (default: auto int8)",
    )
    add_workloads(formats)
    add_rounds(formats)
    formats.add_argument(
        "--text", nargs="+", type=Path, metavar="FILE", help="measure KL and perplexity on these files"
    )
    formats.add_argument("--window", type=whole, metavar="N", help="tokens of a window of the text; default: 1024")
    formats.add_argument("--max-windows", type=whole, metavar="N", help="windows to measure; default: all")
    add_engine(formats, "format", "kv_cache_dtype", "executor")
    bench_servers.add_to(commands)


def _policies(args: argparse.Namespace) -> int:
    from legato.bench.html import policies_page
    from legato.bench.policies import COLUMNS, MEMORY_COLUMNS, compare, kv_memory, memory_cells, policy_cells, why
    from legato.bench.report import print_rows, write, write_json
    from legato.bench.workloads import agent, last_id_of
    from legato.engine.start import engine_file

    at_least_one(args, "rounds", "num_requests")
    if not hasattr(args, "max_num_seqs"):
        args.max_num_seqs = 32
    config = read(EngineConfig, args)
    jobs = agent(args.num_requests, SEED, last_id_of(engine_file(config.model).plan.vocab))
    runs, traces, info = compare(config, jobs, args.rounds, say)
    slots = info.num_blocks * info.block_size
    memory = kv_memory(jobs, slots, info.block_size, info.max_position)
    heading = f"{title('agent workload', info)}, {len(jobs)} requests, batch {args.max_num_seqs}"
    pool = f"KV memory, by counting: a pool of {slots:,} slots"
    if args.json != "-":
        print_rows(heading, COLUMNS, [policy_cells(run, runs[0]) for run in runs])
        print("why: " + "\n     ".join(why(runs)))
        print_rows(f"\n{pool}", MEMORY_COLUMNS, [memory_cells(each) for each in memory])
    head = engine_header(args, info)
    if args.json:
        results = {"policies": [run.to_json() for run in runs], "kv_memory": [m.to_json() for m in memory]}
        write_json(args.json, head, results)
    if args.html:
        write(args.html, policies_page(runs, traces, pool, memory, head, heading))
    return 0


def _formats(args: argparse.Namespace) -> int:
    from legato.bench.formats import Format, compare
    from legato.bench.machine_info import header
    from legato.bench.report import print_rows, write_json

    names = workloads(args)
    at_least_one(args, "rounds")
    formats = list(dict.fromkeys(Format.parse(text) for text in args.formats))
    config = read(EngineConfig, args)
    qualities = _qualities(args, config, formats)
    runs = compare(config, formats, names, args.rounds, SEED, say)
    if args.json != "-":
        details = runs[0].info.details
        print_rows(f"isa {details['isa']}, threads {details['threads']}", _FORMAT_COLUMNS, _format_rows(runs))
        if qualities:
            rows = [
                [name, f"{q.kl:.5f}", f"{q.same_top:.4f}", f"{q.perplexity:.3f}", f"{q.reference_perplexity:.3f}"]
                for name, q in qualities.items()
            ]
            columns = ["format", "KL to fp32, nats", "same top token", "perplexity", "of fp32"]
            print_rows(f"closeness to fp32, {next(iter(qualities.values())).positions} positions", columns, rows)
    if args.json:
        results = {
            "formats": [run.to_json() for run in runs],
            "quality": {name: quality.to_json() for name, quality in qualities.items()},
        }
        write_json(args.json, header(vars(args), SEED), results)
    return 0


def _qualities(args: argparse.Namespace, config: EngineConfig, formats: "list[Format]") -> "dict[str, Quality]":
    """By format; empty where no text was given."""
    from legato.bench.quality import measure, opened, read_windows

    if not args.text:
        for name in ("window", "max_windows"):
            if getattr(args, name) is not None:
                raise ConfigError(f"{name}: there is no --text to cut")
        return {}
    length = 1024 if args.window is None else args.window
    texts = read_windows(config.model, args.text, length, args.max_windows)
    named = {str(format): (format.weights, format.kv_cache_dtype) for format in formats}
    with opened(config.model, named, config.threads, length) as (reference, tested):
        return measure(reference, tested, texts, lambda done: say_windows(done, len(texts)))


def _format_rows(runs: "list[FormatRun]") -> list[list[str]]:
    rows = []
    for index, first in enumerate(runs[0].results):
        for run in runs:
            result = run.results[index]
            details = run.info.details
            ratio = "" if run is runs[0] else f"{result.total_per_s / first.total_per_s:.2f}x"
            rates = (f"{result.output_per_s:,.1f}", f"{result.total_per_s:,.1f}", ratio, f"{result.spread:.1%}")
            rows.append([result.workload, str(run.format), details["weights"], details["kv_cache_dtype"], *rates])
    return rows
