"""The benchmarks of the machine, of single kernels, and of a format's accuracy."""

import argparse
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from legato.cli.bench_shared import say_windows
from legato.cli.flags import Commands, add_command, add_flags, read, whole
from legato.core.config import ModelConfig, flag
from legato.core.errors import ConfigError

__all__ = ["add_to"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityConfig:
    """Quality: what is measured, in which numbers."""

    model: ModelConfig = field(default_factory=ModelConfig)
    kv_cache_dtype: str = flag("auto", "KV cache of the format: auto, bf16, fp32, int8 or fp8; that of fp32 stays fp32")
    threads: int | None = flag(None, "compute threads; default: physical cores within affinity and CPU quota")
    window: int = flag(1024, "tokens of a window; each starts with an empty cache")
    max_windows: int | None = flag(None, "windows to measure; default: all of the text")


def add_to(kinds: Commands) -> None:
    machine = add_command(
        kinds, "machine", "measure this machine's peaks at each ISA level, and its bandwidth", _machine
    )
    ops = add_command(kinds, "ops", "run single kernels against this machine's measured limits", _ops)
    ops.add_argument("--isa", metavar="NAME", help="ISA level; default: the one an engine chooses here")
    ops.add_argument("--kernels", nargs="+", metavar="NAME", help="linear, attention, rows; default: all")
    ops.add_argument("--formats", nargs="+", metavar="NAME", help="f32, bf16, int8, q4_1; default: all")
    ops.add_argument(
        "--shapes",
        nargs="+",
        metavar="NxK",
        help="outputs and inputs of linear layers; default: those of the default model",
    )
    ops.add_argument(
        "--rows",
        nargs="+",
        type=whole,
        default=[1, 32, 128, 512],
        metavar="N",
        help="rows of a step; default: 1 32 128 512",
    )
    ops.add_argument("--kv-dtypes", nargs="+", metavar="NAME", help="KV caches of attention and rows; default: all")
    ops.add_argument(
        "--heads", metavar="QxKVxDIM", help="query heads, KV heads and their size; default: the default model's"
    )
    ops.add_argument(
        "--context", type=whole, default=1024, metavar="N", help="positions that attention sees (default: 1024)"
    )
    ops.add_argument("--batch", type=whole, default=32, metavar="N", help="sequences that decode (default: 32)")
    for parser in (machine, ops):
        parser.add_argument(
            "--threads",
            type=whole,
            metavar="N",
            help="compute threads; default: physical cores within affinity and quota",
        )
        parser.add_argument(
            "--seconds",
            type=float,
            default=0.3,
            metavar="S",
            help="seconds that each figure is measured for (default: 0.3)",
        )
    quality = add_command(kinds, "quality", "KL, top-token agreement and perplexity of a format against fp32", _quality)
    quality.add_argument("--text", nargs="+", type=Path, required=True, metavar="FILE", help="text files, joined")
    add_flags(quality, QualityConfig)
    for parser in (machine, ops, quality):
        parser.add_argument("--json", metavar="FILE", help="write the figures; -: print them, and nothing else")


def _machine(args: argparse.Namespace) -> int:
    from legato.bench.machine import KINDS, bandwidth, peaks, usable_levels
    from legato.bench.report import print_rows, write_json
    from legato.executor.native import enough_threads

    threads = _threads(args)
    with enough_threads(threads):
        found = [peaks(isa, threads, args.seconds) for isa in usable_levels()]
        rates = {count: bandwidth(found[-1].isa, count, args.seconds) for count in sorted({1, threads})}
    if args.json != "-":
        rows = [[p.isa, *(f"{p.of(kind) / 1e9:.1f}" for kind in KINDS)] for p in found]
        columns = ["ISA level", "int8 GOP/s", "bf16 GFLOP/s", "f32 GFLOP/s"]
        print_rows(f"multiply-adds on registers, {threads} threads", columns, rows)
        rows = [[f"{count} threads", f"{rate / 1e9:.1f}"] for count, rate in rates.items()]
        print_rows("memory", ["", "read GB/s"], rows)
    if args.json:
        write_json(args.json, _header(args), {"peaks": [p.to_json() for p in found], "read_bandwidth": rates})
    return 0


def _ops(args: argparse.Namespace) -> int:
    from legato.bench.machine import Limits, bandwidth, default_level, usable_levels
    from legato.bench.ops import FORMATS, HEADS, KV_DTYPES, SHAPES, attentions, linears, rows_kernels
    from legato.bench.report import print_rows, write_json
    from legato.executor.native import enough_threads

    threads, levels = _threads(args), usable_levels()
    isa = args.isa or default_level()
    if isa not in levels:
        raise ConfigError(f"isa: {isa!r} is not one of {', '.join(levels)}")
    kernels = _some(args, "kernels", ("linear", "attention", "rows"))
    formats, kv_dtypes = _some(args, "formats", FORMATS), _some(args, "kv_dtypes", KV_DTYPES)
    if min(*args.rows, args.context, args.batch) < 1:
        raise ConfigError("rows, context and batch must be at least 1")
    shapes = [_numbers("shapes", text, "NxK") for text in args.shapes] if args.shapes else SHAPES
    heads = _heads(args.heads) if args.heads else HEADS
    limits = Limits(isa, threads)
    runs = []
    with enough_threads(threads):
        if "linear" in kernels:
            runs += linears(limits, formats=formats, shapes=shapes, rows=args.rows, seconds=args.seconds)
        if "attention" in kernels:
            runs += attentions(
                limits,
                kv_dtypes=kv_dtypes,
                heads=heads,
                context=args.context,
                batch=args.batch,
                seconds=args.seconds,
            )
        if "rows" in kernels:
            runs += rows_kernels(isa, bandwidth(isa, 1, args.seconds), kv_dtypes=kv_dtypes, heads=heads)
    if args.json != "-":
        rows = [
            [
                run.name,
                f"{run.rows}",
                f"{run.seconds * 1e6:.1f}",
                f"{run.operations / run.seconds / 1e9:.1f}" if run.operations else "",
                f"{run.bytes / run.seconds / 1e9:.1f}",
                "" if run.peak is None else f"{run.of_peak:.0%} of {run.peak / 1e9:.0f}",
                f"{run.of_bandwidth:.0%} of {run.bandwidth / 1e9:.1f}",
            ]
            for run in runs
        ]
        columns = ["kernel", "rows", "us", "GOP/s", "GB/s", "of the peak", "of the read bandwidth"]
        print_rows(f"{isa}, {threads} threads, each beside the limits measured with it", columns, rows)
    if args.json:
        results = {"isa": isa, "threads": threads, "kernels": [run.to_json() for run in runs]}
        write_json(args.json, _header(args), results)
    return 0


def _quality(args: argparse.Namespace) -> int:
    from legato.bench.quality import measure, opened, read_windows
    from legato.bench.report import print_rows, write_json

    config = read(QualityConfig, args)
    texts = read_windows(config.model, args.text, config.window, config.max_windows)
    format = {"": (config.model.format, config.kv_cache_dtype)}
    with opened(config.model, format, config.threads, config.window) as (reference, tested):
        [quality] = measure(reference, tested, texts, lambda done: say_windows(done, len(texts))).values()
        details = dict(tested[""].info().details)
    if args.json != "-":
        rows = [
            ["KL to fp32, nats per token", f"{quality.kl:.5f}"],
            ["same top token", f"{quality.same_top:.4f}"],
            ["perplexity", f"{quality.perplexity:.3f}"],
            ["perplexity of fp32", f"{quality.reference_perplexity:.3f}"],
            ["positions", f"{quality.positions}"],
        ]
        print_rows(
            f"{config.model.format}: weights {details['weights']}, KV {details['kv_cache_dtype']}", ["", ""], rows
        )
    if args.json:
        write_json(args.json, {**_header(args), "executor": details}, quality.to_json())
    return 0


def _threads(args: argparse.Namespace) -> int:
    from legato.executor.memory import default_threads

    if args.threads is not None and args.threads < 1:
        raise ConfigError(f"threads must be at least 1, not {args.threads}")
    if not args.seconds > 0:
        raise ConfigError(f"seconds must be above 0, not {args.seconds}")
    return args.threads or default_threads()


def _some(args: argparse.Namespace, name: str, known: Collection[str]) -> Sequence[str]:
    """The names given by a flag; all that are known where it was not given."""
    given: list[str] = getattr(args, name) or list(known)
    for each in given:
        if each not in known:
            raise ConfigError(f"{name}: {each!r} is not one of {', '.join(known)}")
    return given


def _numbers(name: str, text: str, form: str) -> tuple[int, ...]:
    """The numbers above 0 of a text like 3x4, as many as in `form`."""
    try:
        numbers = tuple(int(part) for part in text.split("x"))
    except ValueError:
        numbers = ()
    if len(numbers) != len(form.split("x")) or min(numbers) < 1:
        raise ConfigError(f"{name}: {text!r} is not {form}")
    return numbers


def _heads(text: str) -> tuple[int, ...]:
    q_heads, kv_heads, head_dim = heads = _numbers("heads", text, "QxKVxDIM")
    if q_heads % kv_heads or head_dim % 2 or head_dim > 512:
        raise ConfigError("heads: Q must be a multiple of KV, and DIM even and at most 512")
    return heads


def _header(args: argparse.Namespace) -> dict[str, Any]:
    from legato.bench.machine_info import header

    return header(vars(args), None)
