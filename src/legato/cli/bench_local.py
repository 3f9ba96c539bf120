"""The benchmarks that run one model in this process: throughput, latency, profile."""

import argparse
from typing import TYPE_CHECKING

from legato.cli.bench_shared import (
    SEED,
    add_engine,
    add_rounds,
    add_workloads,
    at_least_one,
    engine_header,
    say,
    title,
    workloads,
)
from legato.cli.flags import Commands, add_command, read, whole
from legato.core.config import EngineConfig
from legato.core.errors import ConfigError

if TYPE_CHECKING:
    from legato.bench.profile import StepProfile

__all__ = ["add_to"]


def add_to(kinds: Commands) -> None:
    throughput = add_command(kinds, "throughput", "run standard workloads offline, as one batch each", _throughput)
    add_workloads(throughput)
    add_rounds(throughput)
    throughput.add_argument("--html", metavar="FILE", help="write a report with plots")
    latency = add_command(kinds, "latency", "time one static batch, as vllm bench latency does", _latency)
    latency.add_argument("--input-len", type=whole, default=32, metavar="N", help="prompt tokens (default: 32)")
    latency.add_argument("--output-len", type=whole, default=128, metavar="N", help="answer tokens (default: 128)")
    latency.add_argument("--batch-size", type=whole, default=8, metavar="N", help="requests (default: 8)")
    latency.add_argument(
        "--num-iters-warmup", type=whole, default=10, metavar="N", help="batches before, in no figure (default: 10)"
    )
    latency.add_argument(
        "--num-iters", type=whole, default=30, metavar="N", help="batches that are timed (default: 30)"
    )
    profile = add_command(kinds, "profile", "where the time of a step goes, by kind of op and between steps", _profile)
    add_workloads(profile)
    add_rounds(profile)
    for parser in (throughput, latency):
        add_engine(parser)
    add_engine(profile, "executor")


def _throughput(args: argparse.Namespace) -> int:
    from legato.bench.html import throughput_page
    from legato.bench.recorder import Recorder, Trace
    from legato.bench.report import print_rows, write, write_json
    from legato.bench.throughput import COLUMNS, cells, measure
    from legato.bench.workloads import last_id_of, standard
    from legato.engine.llm import LLM
    from legato.engine.start import start

    names = workloads(args)
    at_least_one(args, "rounds")
    engine = start(read(EngineConfig, args))
    traces: dict[str, Trace] = {}
    with LLM.over(engine) as llm:
        recorder = Recorder(engine.loop)
        heading = title(llm.model_name, llm.info)
        jobs = standard(SEED, last_id_of(llm.info.vocab_size))

        def begin(name: str) -> None:
            traces[name] = recorder.restart()

        results = measure(llm, jobs, names, args.rounds, say, begin)
    head = engine_header(args, llm.info)
    if args.json != "-":
        print_rows(heading, COLUMNS, [cells(result) for result in results])
    if args.json:
        write_json(args.json, head, [r.to_json() for r in results])
    if args.html:
        write(args.html, throughput_page(results, traces, head, heading))
    return 0


def _latency(args: argparse.Namespace) -> int:
    from legato.bench.figures import percentile
    from legato.bench.latency import PERCENTILES, measure
    from legato.bench.report import print_rows, write_json
    from legato.engine.llm import LLM
    from legato.engine.start import start

    at_least_one(args, "input_len", "output_len", "batch_size", "num_iters")
    config = read(EngineConfig, args)
    if args.batch_size > config.scheduler.max_num_seqs:
        raise ConfigError(f"batch-size: one batch cannot exceed max-num-seqs ({config.scheduler.max_num_seqs})")
    with LLM.over(start(config)) as llm:
        sizes = f"batch {args.batch_size}, {args.input_len} in, {args.output_len} out"
        heading = f"{title(llm.model_name, llm.info)}\n{sizes}"
        seconds = measure(
            llm,
            batch_size=args.batch_size,
            input_len=args.input_len,
            output_len=args.output_len,
            warmups=args.num_iters_warmup,
            iterations=args.num_iters,
            seed=SEED,
            progress=lambda index, s: say("latency", index, s),
        )
    mean, ordered = sum(seconds) / len(seconds), sorted(seconds)
    found = {percent: percentile(ordered, percent / 100) for percent in PERCENTILES}
    if args.json != "-":
        rows = [["mean", f"{mean:.4f}"], *([f"p{percent}", f"{value:.4f}"] for percent, value in found.items())]
        print_rows(heading, ["", "seconds"], rows)
    if args.json:
        results = {"mean_s": mean, "percentiles_s": found, "seconds": seconds}
        write_json(args.json, engine_header(args, llm.info), results)
    return 0


def _profile(args: argparse.Namespace) -> int:
    from legato.bench.profile import measure, native
    from legato.bench.report import print_rows, write_json
    from legato.bench.workloads import last_id_of, standard
    from legato.engine.llm import LLM
    from legato.engine.start import start

    names = workloads(args)
    at_least_one(args, "rounds")
    engine = start(read(EngineConfig, args))
    with LLM.over(engine) as llm:
        heading = title(llm.model_name, llm.info)
        jobs = standard(SEED, last_id_of(llm.info.vocab_size))
        results = measure(llm, native(engine.executor), jobs, names, args.rounds, say)
    if args.json != "-":
        columns = [
            "ms per step, share of the wall time",
            *(name for result in results for name in (result.workload, "")),
        ]
        print_rows(heading, columns, _profile_rows(results))
    if args.json:
        write_json(args.json, engine_header(args, llm.info), [result.to_json() for result in results])
    return 0


def _profile_rows(results: "list[StepProfile]") -> list[list[str]]:
    """Two columns for each workload."""
    rows = [
        [part, *(text for r in results for text in (f"{r.ms_per_step(part):.3f}", f"{r.share(part):.1%}"))]
        for part in results[0].parts
    ]
    rows.append(["step", *(text for r in results for text in (f"{1000 * r.seconds / r.steps:.3f}", ""))])
    rows.append(["steps", *(text for r in results for text in (f"{r.steps}", ""))])
    rows.append(["rows per step", *(text for r in results for text in (f"{r.rows / r.steps:.1f}", ""))])
    return rows
