"""`legato simulate`: what a model on some machines would do with some traffic, without either."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legato.cli.bench_shared import bounds
from legato.cli.flags import Commands, add_command, add_flags, whole
from legato.core.config import CacheConfig, SchedulerConfig, flags
from legato.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from legato.simulate.outcome import Outcome
    from legato.simulate.setup import Setup
    from legato.simulate.traffic import Visit

__all__ = ["add_to"]

# No memory is touched, no disk is simulated, the server counts queued tokens, and traffic has no cache hints.
_UNUSED = ("prefault_kv", "kv_offloading_size", "kv_offloading_dir", "max_num_queued_tokens", "pin_budget")


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "simulate", "predict what a model on some machines does with some traffic", _run)
    add_flags(parser, CacheConfig, without=_UNUSED)
    add_flags(parser, SchedulerConfig, without=_UNUSED)
    parser.usage = f"{parser.prog} [MODEL] [flags]"
    parser.add_argument(
        "model", nargs="?", default="llama-3.1-70b", metavar="MODEL", help="built-in name, config.json or its folder"
    )
    group = parser.add_argument_group("What serves")
    group.add_argument("--hardware", default="h100x8", metavar="NAME", help="machine (default: h100x8)")
    group.add_argument("--hardware-file", type=Path, metavar="FILE", help="machines of your own, as in hardware.toml")
    group.add_argument("--format", default="bf16", metavar="NAME", help="fp32, bf16 (default), fp8, int8 or int4")
    group.add_argument("--tp", type=whole, metavar="N", help="devices per replica (default: all of a machine)")
    group.add_argument(
        "--max-model-len", type=whole, metavar="N", help="longest sequence in tokens (default: the model's limit)"
    )
    group.add_argument("--replicas", type=whole, default=1, metavar="N", help="how many serve (default: 1)")
    group.add_argument("--router", default="round-robin", metavar="NAME", help="round-robin, least-loaded or prefix")
    group = parser.add_argument_group("Traffic")
    group.add_argument(
        "--traffic", default="poisson", metavar="KIND", help="poisson (default), gamma, burstgpt, mooncake or recorded"
    )
    group.add_argument("--traffic-file", type=Path, metavar="FILE", help="of burstgpt, mooncake or recorded traffic")
    group.add_argument("--speed", type=float, metavar="X", help="how much faster to replay a file (default: 1)")
    group.add_argument(
        "--num-requests", type=whole, metavar="N", help="how many are sent (default: 1000; of a file: all)"
    )
    group.add_argument("--rate", type=float, metavar="X", help="requests per second (default: 1)")
    group.add_argument("--burstiness", type=float, metavar="X", help="gamma: shape of the gaps; below 1: bursts")
    group.add_argument("--input-len", type=whole, metavar="N", help="mean tokens of a prompt (default: 1024)")
    group.add_argument("--output-len", type=whole, metavar="N", help="mean tokens of an answer (default: 256)")
    group.add_argument("--spread", type=float, metavar="X", help="sigma of log lengths (default: 0)")
    group.add_argument("--prefix-len", type=whole, metavar="N", help="tokens that a group's prompts share")
    group.add_argument("--prefix-groups", type=whole, metavar="N", help="groups, the i-th 1/i as large")
    group.add_argument("--seed", type=whole, default=0, metavar="N", help="of the made-up traffic (default: 0)")
    group = parser.add_argument_group("Outcome")
    group.add_argument("--slo", nargs="+", default=[], metavar="NAME:MS", help="bounds for goodput: ttft, tpot, e2el")
    group.add_argument("--no-leap", action="store_true", help="plan every single step; the outcome is the same")
    group.add_argument("--json", metavar="FILE", help="write the figures; -: print them, and nothing else")


def _run(args: argparse.Namespace) -> int:
    from legato.bench.report import write_json
    from legato.simulate.hardware import BUILT_IN
    from legato.simulate.outcome import Outcome
    from legato.simulate.setup import FORMATS, set_up

    if args.format not in FORMATS:
        raise ConfigError(f"format: {args.format!r} is not one of {', '.join(FORMATS)}")
    names = [spec.name for config in (CacheConfig, SchedulerConfig) for spec in flags(config)]
    setup = set_up(
        args.model,
        args.hardware,
        format=args.format,
        tp=args.tp,
        max_model_len=args.max_model_len,
        hardware_file=args.hardware_file or BUILT_IN,
        **{name: getattr(args, name) for name in names if hasattr(args, name)},
    )
    if args.replicas < 1:
        raise ConfigError(f"replicas must be at least 1, not {args.replicas}")
    slo = bounds("slo", args.slo)
    cluster = setup.cluster(Outcome(slo), replicas=args.replicas, router=args.router, leap=not args.no_leap)
    outcome = cluster.run(_visits(args))
    if args.json != "-":
        _print(setup, outcome, args.replicas)
    if args.json:
        write_json(args.json, _header(args, setup), _figures(setup, outcome, args.replicas))
    return 0


_FILES = {"burstgpt": "burstgpt", "mooncake": "timed_trace", "recorded": "recorded"}
_DRAWN = ("rate", "burstiness", "input_len", "output_len", "spread", "prefix_len", "prefix_groups")


def _visits(args: argparse.Namespace) -> "Iterable[Visit]":
    from legato.bench.traces import read_trace
    from legato.simulate.traffic import replayed

    if args.num_requests is not None and args.num_requests < 1:
        raise ConfigError(f"num_requests must be at least 1, not {args.num_requests}")
    if args.traffic in _FILES:
        for name in _DRAWN:
            if getattr(args, name) is not None:
                raise ConfigError(f"{name}: traffic {args.traffic} has its own")
        if args.traffic_file is None:
            raise ConfigError(f"traffic {args.traffic} needs --traffic-file")
        rows = read_trace(_FILES[args.traffic], args.traffic_file)
        return replayed(rows[: args.num_requests], 1.0 if args.speed is None else args.speed)
    if args.traffic not in ("poisson", "gamma"):
        raise ConfigError(f"traffic: {args.traffic!r} is not one of poisson, gamma, {', '.join(_FILES)}")
    for name in ("traffic_file", "speed"):
        if getattr(args, name) is not None:
            raise ConfigError(f"{name}: goes with traffic from a file, not with {args.traffic}")
    if (args.burstiness is not None) != (args.traffic == "gamma"):
        raise ConfigError("burstiness: goes with traffic gamma, and traffic gamma needs it")
    return _drawn(args)


def _drawn(args: argparse.Namespace) -> "Iterable[Visit]":
    from legato.simulate.traffic import Lengths, drawn

    def given(name: str, default: Any) -> Any:
        value = getattr(args, name)
        return default if value is None else value

    lengths = Lengths(
        prompt=given("input_len", 1024),
        output=given("output_len", 256),
        spread=given("spread", 0.0),
        prefix=given("prefix_len", 0),
        groups=given("prefix_groups", 1),
    )
    return drawn(given("num_requests", 1000), given("rate", 1.0), given("burstiness", 1.0), lengths, args.seed)


def _header(args: argparse.Namespace, setup: "Setup") -> dict[str, Any]:
    from legato.bench.machine_info import header

    head = header(vars(args), args.seed)
    return {name: head[name] for name in ("legato", "commit", "seed", "flags")} | {
        "replica": {**setup.info.details, "num_blocks": setup.info.num_blocks, "block_size": setup.info.block_size}
    }


def _figures(setup: "Setup", outcome: "Outcome", replicas: int) -> dict[str, Any]:
    figures = outcome.to_json()
    cost = setup.price * replicas
    per_dollar = figures["total_per_s"] * 3600 / cost if cost else None
    return {**figures, "price_per_hour": cost, "total_tokens_per_price": per_dollar}


def _print(setup: "Setup", outcome: "Outcome", replicas: int) -> None:
    from legato.bench.report import LATENCY_COLUMNS, print_rows, summary_row

    figures = _figures(setup, outcome, replicas)
    numbers, info = setup.numbers, setup.info
    title = (
        f"{setup.model.name}, {numbers.format}, on {replicas} x {numbers.devices} of {setup.hardware.name}; "
        f"{info.num_blocks:,} KV blocks of {info.block_size}"
    )
    rows = [[label, form.format(figures[name])] for name, label, form in _ROWS if figures[name] is not None]
    rows += [[f"refused: {why}", f"{count:,}"] for why, count in figures["refused"].items()]
    print_rows(title, ["", "value"], rows)
    summaries = outcome.summaries()
    names = [name for name in ("ttft", "itl", "tpot", "e2el") if name in summaries]
    print_rows("latency, ms", LATENCY_COLUMNS, [summary_row(name, summaries[name]) for name in names])


_ROWS = (
    ("completed", "requests completed", "{:,}"),
    ("duration_s", "duration, s", "{:,.2f}"),
    ("prompt_tokens", "prompt tokens", "{:,}"),
    ("cached_tokens", "of them cached", "{:,}"),
    ("output_tokens", "output tokens", "{:,}"),
    ("requests_per_s", "requests/s", "{:,.3f}"),
    ("output_per_s", "output tok/s", "{:,.1f}"),
    ("total_per_s", "total tok/s", "{:,.1f}"),
    ("goodput_per_s", "goodput, requests/s", "{:,.3f}"),
    ("goodput_share", "requests that met the bounds", "{:.1%}"),
    ("running", "running at once, per replica", "{:,.1f}"),
    ("most_running", "most at once", "{:,}"),
    ("kv_usage", "KV blocks in use", "{:.1%}"),
    ("kv_waste", "unused slots in them", "{:.1%}"),
    ("preemptions", "preemptions", "{:,}"),
    ("steps", "steps", "{:,}"),
    ("total_tokens_per_price", "tokens per unit of price", "{:,.0f}"),
)
