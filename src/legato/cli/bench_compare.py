"""`legato bench compare`: two or more ways to serve, in one sitting and in turn."""

import argparse
from typing import TYPE_CHECKING

from legato.cli.bench_shared import SEED, add_engine, add_rounds, at_least_one, header, say, title
from legato.cli.flags import Commands, add_command, read
from legato.core.config import EngineConfig

if TYPE_CHECKING:
    from legato.bench.policies import PolicyRun

__all__ = ["add_to"]

_COLUMNS = (
    "policy",
    "output tok/s",
    "continuous is",
    "steps",
    "ms/step",
    "rows",
    "useless rows",
    "KV waste",
    "spread",
)


def add_to(kinds: Commands) -> None:
    parser = kinds.add_parser("compare", help="batching policies, formats, or two servers, in turn")
    commands = parser.add_subparsers(title="comparisons", metavar="COMPARISON", required=True)
    policies = add_command(
        commands, "policies", "continuous against static batching, on answers with a heavy tail", _policies
    )
    add_rounds(policies)
    add_engine(policies, "policy", "static_padding", "executor")


def _policies(args: argparse.Namespace) -> int:
    from legato.bench.policies import POLICIES, compare, kv_memory
    from legato.bench.report import print_rows, write_json
    from legato.bench.workloads import last_id_of, standard
    from legato.engine.start import engine_file

    at_least_one(args, "rounds")
    if not hasattr(args, "max_num_seqs"):
        args.max_num_seqs = 32
    config = read(EngineConfig, args)
    jobs = standard(SEED, last_id_of(engine_file(config.model).plan.vocab))["agent"]
    runs, info = compare(config, jobs, args.rounds, say)
    slots = info.num_blocks * info.block_size
    memory = kv_memory(jobs, slots, info.block_size, info.max_position)
    if args.json != "-":
        print_rows(f"{title('agent workload', info)}, batch {args.max_num_seqs}", _COLUMNS, _policy_rows(runs))
        print(_why(dict(zip(POLICIES, runs, strict=True))))
        rows = [[m.layout, f"{m.waste:.1%}", f"{m.streams}"] for m in memory]
        print_rows(f"\nKV memory, by counting: a pool of {slots} slots", ["layout", "waste", "streams"], rows)
    if args.json:
        results = {"policies": [run.to_json() for run in runs], "kv_memory": [m.to_json() for m in memory]}
        write_json(args.json, header(args, info), results)
    return 0


def _policy_rows(runs: "list[PolicyRun]") -> list[list[str]]:
    first = runs[0]
    return [
        [
            run.policy,
            f"{run.output_per_s:.1f}",
            "" if run is first else f"{run.median_s / first.median_s:.2f}x",
            f"{run.steps}",
            f"{run.ms_per_step:.1f}",
            f"{run.rows}",
            f"{run.useless_rows:.0%}",
            f"{run.kv_waste:.1%}",
            f"{run.spread:.0%}",
        ]
        for run in runs
    ]


def _why(runs: "dict[str, PolicyRun]") -> str:
    continuous, skips, pads = runs.values()
    return (
        f"why: places held until the longest answer ends make {skips.steps / continuous.steps:.2f}x the steps. Where "
        f"ended rows are skipped,\na step then holds few rows and costs {skips.ms_per_step:.1f} instead of "
        f"{continuous.ms_per_step:.1f} ms, since a CPU's step follows its live rows.\nWith padding each step computes "
        f"all places: {pads.rows / continuous.rows:.2f}x the rows, {pads.useless_rows:.0%} of them for nobody."
    )
