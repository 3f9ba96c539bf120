"""The benchmarks that run a model in this process: throughput, latency, compare."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from legato.cli.flags import Commands, add_command, add_flags, read, whole
from legato.core.config import EngineConfig
from legato.core.errors import ConfigError

if TYPE_CHECKING:
    from legato.bench.compare import PolicyRun
    from legato.core.types import ExecutorInfo

__all__ = ["add_to"]

_SEED = 0  # of all workloads here, so that runs can be compared


def add_to(kinds: Commands) -> None:
    throughput = add_command(kinds, "throughput", "run standard workloads offline, as one batch each", _throughput)
    throughput.add_argument("--workloads", nargs="+", metavar="NAME", help="single, uniform, mixed (default), or agent")
    throughput.add_argument("--rounds", type=whole, default=3, metavar="N", help="runs of each (default: 3)")
    throughput.add_argument("--html", metavar="FILE", help="write a report with plots")
    latency = add_command(kinds, "latency", "time one static batch, as vllm bench latency does", _latency)
    latency.add_argument("--input-len", type=whole, default=32, metavar="N", help="default: 32")
    latency.add_argument("--output-len", type=whole, default=128, metavar="N", help="default: 128")
    latency.add_argument("--batch-size", type=whole, default=8, metavar="N", help="default: 8")
    latency.add_argument("--num-iters-warmup", type=whole, default=10, metavar="N", help="default: 10")
    latency.add_argument("--num-iters", type=whole, default=30, metavar="N", help="default: 30")
    compare = add_command(
        kinds, "compare", "continuous against static batching, on answers with a heavy tail", _compare
    )
    compare.add_argument("--rounds", type=whole, default=3, metavar="N", help="runs of each (default: 3)")
    for parser in (throughput, latency, compare):
        parser.add_argument("--json", metavar="FILE", help="write the figures; -: print them, and nothing else")
        add_flags(parser, EngineConfig, without=("max_num_queued_tokens",))
        # Every round has the same prompts: with a prefix cache, all but the first would not compute them.
        parser.set_defaults(enable_prefix_caching=False)


def _throughput(args: argparse.Namespace) -> int:
    from legato.bench.html import throughput_page
    from legato.bench.recorder import Recorder, Trace
    from legato.bench.report import print_rows, write, write_json
    from legato.bench.throughput import measure
    from legato.bench.workloads import DEFAULT, LAST_ID, WORKLOADS, standard
    from legato.engine.llm import LLM
    from legato.engine.start import start

    names = args.workloads or list(DEFAULT)
    for name in names:
        if name not in WORKLOADS:
            raise ConfigError(f"workloads: {name!r} is not one of {', '.join(WORKLOADS)}")
    _at_least_one(args, "rounds")
    engine = start(read(EngineConfig, args))
    traces: dict[str, Trace] = {}
    with LLM.over(engine) as llm:
        recorder = Recorder(engine.loop)
        title = _title(llm.model_name, llm.info)
        workloads = standard(_SEED, last_id=min(LAST_ID, llm.info.vocab_size))

        def begin(name: str) -> None:
            traces[name] = recorder.restart()

        results = measure(llm, workloads, names, args.rounds, _say, begin)
    head = _header(args, llm.info)
    if args.json != "-":
        columns = ["workload", "requests", "tokens in", "tokens out", "output tok/s", "total tok/s", "spread"]
        rows = []
        for r in results:
            counts = map(str, (r.requests, r.tokens_in, r.tokens_out))
            rows.append([r.workload, *counts, f"{r.output_per_s:.1f}", f"{r.total_per_s:.1f}", f"{r.spread:.1%}"])
        print_rows(title, columns, rows)
    if args.json:
        write_json(args.json, head, [r.to_json() for r in results])
    if args.html:
        write(args.html, throughput_page(results, traces, head, title))
    return 0


def _latency(args: argparse.Namespace) -> int:
    from legato.bench.figures import percentile
    from legato.bench.latency import PERCENTILES, measure
    from legato.bench.report import print_rows, write_json
    from legato.engine.llm import LLM
    from legato.engine.start import start

    _at_least_one(args, "input_len", "output_len", "batch_size", "num_iters")
    config = read(EngineConfig, args)
    if args.batch_size > config.scheduler.max_num_seqs:
        raise ConfigError(f"batch-size: one batch cannot exceed max-num-seqs ({config.scheduler.max_num_seqs})")
    with LLM.over(start(config)) as llm:
        title = (
            f"{_title(llm.model_name, llm.info)}\nbatch {args.batch_size}, {args.input_len} in, {args.output_len} out"
        )
        seconds = measure(
            llm,
            batch_size=args.batch_size,
            input_len=args.input_len,
            output_len=args.output_len,
            warmups=args.num_iters_warmup,
            iterations=args.num_iters,
            seed=_SEED,
            progress=lambda index, s: _say("latency", index, s),
        )
    mean, ordered = sum(seconds) / len(seconds), sorted(seconds)
    found = {percent: percentile(ordered, percent / 100) for percent in PERCENTILES}
    if args.json != "-":
        rows = [["mean", f"{mean:.4f}"], *([f"p{percent}", f"{value:.4f}"] for percent, value in found.items())]
        print_rows(title, ["", "seconds"], rows)
    if args.json:
        results = {"mean_s": mean, "percentiles_s": found, "seconds": seconds}
        write_json(args.json, _header(args, llm.info), results)
    return 0


def _compare(args: argparse.Namespace) -> int:
    from legato.bench.compare import POLICIES, compare, kv_memory
    from legato.bench.report import print_rows, write_json
    from legato.bench.workloads import standard

    _at_least_one(args, "rounds")
    for name in ("policy", "static_padding"):
        if hasattr(args, name):
            raise ConfigError(f"{name}: `bench compare` runs every policy")
    if not hasattr(args, "max_num_seqs"):
        args.max_num_seqs = 32
    config = read(EngineConfig, args)
    jobs = standard(_SEED)["agent"]
    runs, info = compare(config, jobs, args.rounds, _say)
    slots = info.num_blocks * info.block_size
    memory = kv_memory(jobs, slots, info.block_size, info.max_position)
    if args.json != "-":
        columns = ["policy", "output tok/s", "continuous is", "steps", "ms/step", "rows", "useless rows", "spread"]
        print_rows(f"{_title('agent workload', info)}, batch {args.max_num_seqs}", columns, _policy_rows(runs))
        print(_why(dict(zip(POLICIES, runs, strict=True))))
        rows = [[m.layout, f"{m.waste:.1%}", f"{m.streams}"] for m in memory]
        print_rows(f"\nKV memory, by counting: a pool of {slots} slots", ["layout", "waste", "streams"], rows)
    if args.json:
        results = {"policies": [run.to_json() for run in runs], "kv_memory": [m.to_json() for m in memory]}
        write_json(args.json, _header(args, info), results)
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


def _title(name: str, info: "ExecutorInfo") -> str:
    details = ", ".join(f"{key} {value}" for key, value in info.details.items() if key != "engine_file")
    return f"{name}: {info.name}, {details}"


def _header(args: argparse.Namespace, info: "ExecutorInfo") -> dict[str, Any]:
    from legato.bench.machine_info import header

    return {**header(vars(args), _SEED), "executor": {"name": info.name, **info.details}}


def _at_least_one(args: argparse.Namespace, *names: str) -> None:
    for name in names:
        if getattr(args, name) < 1:
            raise ConfigError(f"{name} must be at least 1, not {getattr(args, name)}")


def _say(workload: str, index: int, seconds: float) -> None:
    print(f"  {workload} round {index + 1}: {seconds:.2f} s", file=sys.stderr, flush=True)
