"""The AVX2 levels and the portable one beside the one an engine chooses here, int8, forced by LEGATO_ISA, in turn.

python benchmarks/isa_levels.py [--rounds 3] [--portable-rounds 1]

AVX2, without and with AVX-VNNI, runs `uniform`. The portable level would take minutes for that: it runs 8 x (256 in,
32 out), as does the chosen level beside it. A level that this CPU lacks is left out.
"""

import statistics
from collections.abc import Callable, Sequence

from common import Result, arguments, legato, run_json, say

from legato.bench.machine import default_level, usable_levels

AVX2 = ("avx2", "avx2_vnni")
SMALL = {"batch-size": 8, "input-len": 256, "output-len": 32}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--portable-rounds", type=int, default=1, help="default: 1")
    parser.add_argument("--workload", default="uniform")
    args = parser.parse_args()
    level = default_level()
    result = Result("isa_levels", args)
    others = [isa for isa in AVX2 if isa in usable_levels()]
    rates = in_turn((level, *others), args.rounds, lambda isa: throughput(isa, args.workload))
    for isa in others:
        result.add(isa, ratio(rates, isa, level), {name: rates[name] for name in (level, isa)}, "total tok/s")
    if args.portable_rounds:
        rates = in_turn((level, "portable"), args.portable_rounds, small_batch)
        result.add("portable", ratio(rates, "portable", level), rates, "total tok/s")
    result.save()


def in_turn(levels: Sequence[str], rounds: int, run: Callable[[str], float]) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {isa: [] for isa in levels}
    for index in range(rounds):
        for isa in levels:
            rates[isa].append(run(isa))
            say(f"round {index + 1}, {isa}: {rates[isa][-1]:.1f} total tok/s")
    return rates


def ratio(rates: dict[str, list[float]], isa: str, other: str) -> float:
    return statistics.median(rates[isa]) / statistics.median(rates[other])


def throughput(isa: str, workload: str) -> float:
    command = legato("bench", "throughput", "--format", "int8", "--rounds", 1, "--workloads", workload, "--json", "-")
    rate: float = run_json(command, {"LEGATO_ISA": isa})["results"][0]["total_per_s"]
    return rate


def small_batch(isa: str) -> float:
    flags = [part for name, value in SMALL.items() for part in (f"--{name}", value)]
    command = legato("bench", "latency", "--format", "int8", *flags, "--num-iters-warmup", 0, "--num-iters", 1)
    seconds: float = run_json([*command, "--json", "-"], {"LEGATO_ISA": isa})["results"]["mean_s"]
    return SMALL["batch-size"] * (SMALL["input-len"] + SMALL["output-len"]) / seconds


if __name__ == "__main__":
    main()
