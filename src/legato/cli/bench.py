"""`legato bench`: measure this machine."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from legato.cli import bench_serve
from legato.cli.flags import Commands, add_command, add_flags, read, whole
from legato.core.config import EngineConfig
from legato.core.errors import ConfigError

if TYPE_CHECKING:
    from legato.bench.throughput import Throughput

__all__ = ["add_to"]


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("bench", help="measure throughput, latency and load, in reproducible ways")
    kinds = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    throughput = add_command(kinds, "throughput", "run standard workloads offline, as one batch each", _throughput)
    throughput.add_argument(
        "--workloads", nargs="+", metavar="NAME", help="of single, uniform, mixed (default: these) and agent"
    )
    throughput.add_argument("--rounds", type=whole, default=3, metavar="N", help="runs of each (default: 3)")
    throughput.add_argument("--json", action="store_true", help="print one JSON object")
    add_flags(throughput, EngineConfig)
    bench_serve.add_to(kinds)


def _throughput(args: argparse.Namespace) -> int:
    from legato.bench.throughput import measure
    from legato.bench.workloads import DEFAULT, LAST_ID, WORKLOADS, standard
    from legato.engine.llm import LLM
    from legato.engine.start import start

    names = args.workloads or list(DEFAULT)
    for name in names:
        if name not in WORKLOADS:
            raise ConfigError(f"workloads: {name!r} is not one of {', '.join(WORKLOADS)}")
    if args.rounds < 1:
        raise ConfigError(f"rounds must be at least 1, not {args.rounds}")
    with LLM.over(start(read(EngineConfig, args))) as llm:
        info = llm.info
        print(f"{info.name}: {', '.join(f'{k} {v}' for k, v in info.details.items())}", file=sys.stderr)
        workloads = standard(last_id=min(LAST_ID, info.vocab_size))
        results = measure(llm, workloads, names, args.rounds, _say)
    if args.json:
        details = dict(info.details)
        print(json.dumps({"executor": info.name, "details": details, "results": [r.to_json() for r in results]}))
    else:
        print("\n".join(_table(results)))
    return 0


def _say(workload: str, index: int, seconds: float) -> None:
    print(f"  {workload} round {index + 1}: {seconds:.2f} s", file=sys.stderr, flush=True)


def _table(results: "list[Throughput]") -> list[str]:
    lines = ["workload   requests  tokens in  tokens out  output tok/s  total tok/s  spread"]
    for r in results:
        counts = f"{r.workload:10}{r.requests:9}{r.tokens_in:11}{r.tokens_out:12}"
        lines.append(f"{counts}{r.output_per_s:14.1f}{r.total_per_s:13.1f}{r.spread:8.1%}")
    return lines
