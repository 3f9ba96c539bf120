"""Linear layers and attention as shares of this run's measured limits, all threads, by `legato bench ops`.

python benchmarks/kernels.py [--rounds 3] [--seconds 0.3]

A figure takes the four shapes of a layer of the default model together: what they do over the time that they take.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from common import Result, arguments, legato, run_json, say

from legato.bench.ops import SHAPES

MANY = (64, 128, 512)  # rows
LAYER = {f"{n}x{k}" for n, k in SHAPES[:4]}
FORMATS = ("int8", "bf16", "q4_1")
KV_DTYPES = ("bf16", "int8")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each kernel (default: 0.3)")
    args = parser.parse_args()
    rounds = []
    for index in range(args.rounds):
        which = (
            "--kernels",
            "linear",
            "attention",
            "--formats",
            *FORMATS,
            "--rows",
            1,
            *MANY,
            "--kv-dtypes",
            *KV_DTYPES,
        )
        command = legato("bench", "ops", *which, "--seconds", args.seconds, "--json", "-")
        rounds.append(run_json(command)["results"])
        say(f"round {index + 1} done")
    result = Result("kernels", args)
    add_linears(result, rounds)
    add_attention(result, rounds)
    result.save()


def add_linears(result: Result, rounds: Sequence[dict[str, Any]]) -> None:
    peaks = {kind: statistics.median(r["peaks"][kind] for r in rounds) / 1e9 for kind in ("int8", "bf16")}
    for format in ("int8", "bf16"):
        rates = {f"M = {m}": [layer(r, format, m, "operations") / 1e9 for r in rounds] for m in MANY}
        shares = {m: [layer(r, format, m, "operations") / r["peaks"][format] for r in rounds] for m in MANY}
        worst = min(statistics.median(values) for values in shares.values())
        result.add(f"linear-{format}", worst, rates, "GOP/s", [f"measured peak {peaks[format]:.0f} GOP/s"])
    bandwidth = statistics.median(r["read_bandwidth"] for r in rounds)
    for format in FORMATS:
        rates = [layer(r, format, 1, "bytes") for r in rounds]
        share = statistics.median(rate / r["read_bandwidth"] for rate, r in zip(rates, rounds, strict=True))
        notes = [f"read bandwidth {bandwidth / 1e9:.1f} GB/s"]
        result.add(f"m1-{format}", share, {"M = 1": [rate / 1e9 for rate in rates]}, "GB/s of weights", notes)


def layer(results: dict[str, Any], format: str, rows: int, quantity: str) -> float:
    """Operations or bytes per second of a layer's linear ops."""
    names = {f"linear {format} {shape}" for shape in LAYER}
    kernels = [k for k in results["kernels"] if k["name"] in names and k["rows"] == rows]
    total: float = sum(kernel[quantity] for kernel in kernels) / sum(kernel["seconds"] for kernel in kernels)
    return total


def add_attention(result: Result, rounds: Sequence[dict[str, Any]]) -> None:
    for kind, share, quantity, unit in (
        ("decode", "of_bandwidth", "bytes", "GB/s"),
        ("prefill", "of_peak", "operations", "GOP/s"),
    ):
        for dtype in KV_DTYPES:
            start = f"{kind} attention, {dtype} KV"
            found = [k for r in rounds for k in r["kernels"] if k["name"].startswith(start)]
            rates = [kernel[quantity] / kernel["seconds"] / 1e9 for kernel in found]
            median = statistics.median(kernel[share] for kernel in found)
            result.add(f"attention-{kind}-{dtype}", median, {found[0]["name"]: rates}, unit)


if __name__ == "__main__":
    main()
