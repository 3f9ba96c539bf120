"""What the benchmarks that run a model in this process have in common."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from legato.cli.flags import add_flags, whole
from legato.core.config import EngineConfig
from legato.core.errors import ConfigError

if TYPE_CHECKING:
    from legato.core.types import ExecutorInfo

__all__ = [
    "SEED",
    "add_engine",
    "add_rounds",
    "add_workloads",
    "at_least_one",
    "bounds",
    "engine_header",
    "say",
    "say_windows",
    "title",
    "workloads",
]

_BOUNDED = ("ttft", "tpot", "e2el")
SEED = 0  # of all workloads that run in this process, so that runs can be compared


def add_engine(parser: Any, *without: str) -> None:
    """--json, and the flags of an engine, but those named."""
    parser.add_argument("--json", metavar="FILE", help="write the figures; -: print them, and nothing else")
    add_flags(parser, EngineConfig, without=("max_num_queued_tokens", *without))
    # Every round has the same prompts: with a prefix cache, all but the first would not compute them.
    parser.set_defaults(enable_prefix_caching=False)


def add_rounds(parser: Any) -> None:
    parser.add_argument("--rounds", type=whole, default=3, metavar="N", help="runs of each (default: 3)")


def add_workloads(parser: Any) -> None:
    parser.add_argument("--workloads", nargs="+", metavar="NAME", help="single, uniform, mixed (default), or agent")


def workloads(args: argparse.Namespace) -> list[str]:
    """The names that were given, or the default ones."""
    from legato.bench.workloads import DEFAULT, WORKLOADS

    names: list[str] = args.workloads or list(DEFAULT)
    for name in names:
        if name not in WORKLOADS:
            raise ConfigError(f"workloads: {name!r} is not one of {', '.join(WORKLOADS)}")
    return names


def at_least_one(args: argparse.Namespace, *names: str) -> None:
    for name in names:
        if getattr(args, name) < 1:
            raise ConfigError(f"{name} must be at least 1, not {getattr(args, name)}")


def bounds(flag: str, given: list[str]) -> dict[str, float]:
    """Milliseconds by name, of texts like ttft:200. ConfigError names the flag."""
    found = {}
    for text in given:
        name, _, value = text.partition(":")
        try:
            found[name] = float(value)
        except ValueError:
            raise ConfigError(f"{flag}: {text!r} is not NAME:MILLISECONDS") from None
        if name not in _BOUNDED:
            raise ConfigError(f"{flag}: {name!r} is not one of {', '.join(_BOUNDED)}")
    return found


def title(name: str, info: "ExecutorInfo") -> str:
    details = ", ".join(f"{key} {value}" for key, value in info.details.items() if key != "engine_file")
    return f"{name}: {info.name}, {details}"


def engine_header(args: argparse.Namespace, info: "ExecutorInfo") -> dict[str, Any]:
    from legato.bench.machine_info import header

    return {**header(vars(args), SEED), "executor": {"name": info.name, **info.details}}


def say(workload: str, index: int, seconds: float) -> None:
    """Progress."""
    print(f"  {workload} round {index + 1}: {seconds:.2f} s", file=sys.stderr, flush=True)


def say_windows(done: int, total: int) -> None:
    """Progress over the windows of a text."""
    print(f"  window {done} of {total}", file=sys.stderr, flush=True)
