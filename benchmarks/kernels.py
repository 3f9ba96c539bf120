"""Linear layers and attention as shares of this run's measured limits, all threads, by `legato bench ops`.

python benchmarks/kernels.py [--rounds 3] [--seconds 0.3]

A figure takes the four shapes of a layer of the default model together: what they do over the time that they take, and
their share of the limits measured beside each.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from common import Result, arguments, legato, run_json, say

from legato.bench.ops import SHAPES

MANY = (64, 128, 512)  # rows
LAYER = [f"{n}x{k}" for n, k in SHAPES[:4]]
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
            "--shapes",
            *LAYER,
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
    for format in ("int8", "bf16"):
        found = {m: [layer(r, format, m) for r in rounds] for m in MANY}
        shares = {m: statistics.median(share(kernels, "of_peak") for kernels in of) for m, of in found.items()}
        rates = {f"M = {m}": [rate(kernels, "operations") for kernels in of] for m, of in found.items()}
        peaks = [kernel["peak"] / 1e9 for of in found.values() for kernels in of for kernel in kernels]
        each = ", ".join(f"M = {m} {value:.1%}" for m, value in shares.items())
        note = f"{each} of the peak beside each kernel, {min(peaks):.0f} to {max(peaks):.0f} GOP/s"
        result.add(f"linear-{format}", min(shares.values()), rates, "GOP/s", [note])
    for format in FORMATS:
        of = [layer(r, format, 1) for r in rounds]
        value = statistics.median(share(kernels, "of_bandwidth") for kernels in of)
        read = [kernel["bandwidth"] / 1e9 for kernels in of for kernel in kernels]
        notes = [f"read bandwidth beside each kernel {min(read):.1f} to {max(read):.1f} GB/s"]
        rates = {"M = 1": [rate(kernels, "bytes") for kernels in of]}
        result.add(f"m1-{format}", value, rates, "GB/s of weights", notes)


def layer(results: dict[str, Any], format: str, rows: int) -> list[dict[str, Any]]:
    """A layer's linear ops."""
    names = {f"linear {format} {shape}" for shape in LAYER}
    return [k for k in results["kernels"] if k["name"] in names and k["rows"] == rows]


def rate(kernels: list[dict[str, Any]], quantity: str) -> float:
    """10^9 operations or bytes a second of the kernels together."""
    total: float = sum(kernel[quantity] for kernel in kernels) / sum(kernel["seconds"] for kernel in kernels) / 1e9
    return total


def share(kernels: list[dict[str, Any]], of: str) -> float:
    """The time that the kernels together would take at their limits, over what they took."""
    ideal: float = sum(kernel[of] * kernel["seconds"] for kernel in kernels)
    return ideal / sum(kernel["seconds"] for kernel in kernels)


def add_attention(result: Result, rounds: Sequence[dict[str, Any]]) -> None:
    for kind, limit, quantity, unit in (
        ("decode", "of_bandwidth", "bytes", "GB/s"),
        ("prefill", "of_peak", "operations", "GOP/s"),
    ):
        for dtype in KV_DTYPES:
            start = f"{kind} attention, {dtype} KV"
            found = [k for r in rounds for k in r["kernels"] if k["name"].startswith(start)]
            rates = [kernel[quantity] / kernel["seconds"] / 1e9 for kernel in found]
            median = statistics.median(kernel[limit] for kernel in found)
            result.add(f"attention-{kind}-{dtype}", median, {found[0]["name"]: rates}, unit)


if __name__ == "__main__":
    main()
