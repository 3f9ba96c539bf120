"""The figures and plots of docs/planning.md, by simulation: they depend on no machine and are the same at every run.

python benchmarks/planning.py [NAME ...] [--small]

Names: batching, paging, chunking, memory, price, replicas; default: all. Writes benchmarks/results/planning/NAME.json
and docs/planning/NAME.svg. --small: a twentieth of the requests, to see that it runs; nothing is written.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from legato.bench.plot import Line, document
from legato.bench.report import write
from legato.simulate.outcome import Outcome
from legato.simulate.search import least_count, most_rate
from legato.simulate.setup import Setup, set_up
from legato.simulate.traffic import Lengths, drawn

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "planning"
PLOTS = ROOT / "docs" / "planning"
SLO = {"ttft": 2000.0, "tpot": 50.0}  # milliseconds
MET = 0.99  # share of the requests that has to meet them

Figures = dict[str, Any]
Answer = tuple[list[Figures], str]  # rows, and the plot


def run(
    setup: Setup, requests: int, rate: float, lengths: Lengths, *, burstiness: float = 1.0, **cluster: Any
) -> Figures:
    """Figures of one simulation."""
    return setup.cluster(Outcome(SLO), **cluster).run(drawn(requests, rate, burstiness, lengths, seed=0)).to_json()


def meets(figures: Figures) -> bool:
    return bool(figures["goodput_share"] >= MET)


def batching(scale: float) -> Answer:
    """Static against continuous batching, all requests at once, by how much answers differ in length."""
    rows, lines = [], []
    for batch in (32, 128):
        points: dict[str, list[tuple[float, float]]] = {"static": [], "static, padded": []}
        for spread in (0.0, 0.25, 0.5, 0.75, 1.0):
            lengths = Lengths(prompt=1024, output=256, spread=spread, longest_output=2048, longest_prompt=4096)
            rates = {}
            for name, policy in (("continuous", "fcfs"), ("static", "static"), ("static, padded", "static")):
                setup = set_up(
                    "llama-3.1-70b", "h100x8", format="fp8", max_model_len=8192, max_num_seqs=batch, policy=policy,
                    static_padding=name.endswith("padded"),
                )  # fmt: skip
                rates[name] = run(setup, round(8 * batch * scale), math.inf, lengths)["output_per_s"]
            for name in points:
                points[name].append((spread, rates["continuous"] / rates[name]))
            rows.append({"batch": batch, "spread": spread, "output_per_s": rates})
        lines += [Line(f"batch of {batch}, against {name}", points[name]) for name in points]
    return rows, document(
        "Continuous batching, times the throughput of static",
        "spread of lengths (sigma of the logarithm)",
        "times",
        lines,
    )


def paging(scale: float) -> Answer:
    """Streams that fit: a contiguous slot of 4,096 tokens each against blocks of 16, in the same memory."""
    rows, lines = [], []
    lengths = Lengths(prompt=640, output=320, spread=0.7, longest_output=2047, longest_prompt=2048)
    layouts = (("contiguous slots of 4,096", 4096), ("blocks of 256", 256), ("blocks of 16", 16))
    for name, block_size in layouts:
        points = []
        for slots in (8, 16, 32):
            setup = set_up(
                "llama-3.1-8b", "h100x8", tp=1, max_model_len=4096, max_num_seqs=1024, block_size=block_size,
                num_blocks=slots * 4096 // block_size, enable_prefix_caching=False,
            )  # fmt: skip
            found = run(setup, round(30 * slots * scale), math.inf, lengths)
            points.append((slots, found["running"]))
            rows.append(
                {"layout": name, "slots": slots, **_some(found, "running", "kv_waste", "output_per_s", "preemptions")}
            )
        lines.append(Line(name, points))
    return rows, document("Streams that fit into a pool", "memory, in slots of 4,096 tokens", "running at once", lines)


def chunking(scale: float) -> Answer:
    """Prompts in chunks beside decodes, against whole prompts, as load grows: gaps between tokens."""
    rows, lines = [], []
    lengths = Lengths(prompt=3000, output=200, spread=0.8, longest_output=1000, longest_prompt=15_000)
    for name, rows_per_step, chunk in (("whole prompts", 16_384, 0), ("chunks of 512", 1024, 512)):
        points = []
        for rate in (1.0, 2.0, 4.0, 6.0, 8.0):
            setup = set_up(
                "llama-3.1-70b", "h100x8", format="fp8", max_model_len=16_384,
                max_num_batched_tokens=rows_per_step, long_prefill_token_threshold=chunk,
            )  # fmt: skip
            found = run(setup, round(800 * scale), rate, lengths)
            points.append((rate, found["latency_ms"]["itl"]["p99"]))
            rows.append({"prefill": name, "rate": rate, **_some(found, "output_per_s", "latency_ms")})
        lines.append(Line(name, points))
    return rows, document("ITL p99 by load: chunks or whole prompts", "requests per second", "ITL p99, ms", lines)


def memory(scale: float) -> Answer:
    """What 0.95 of the memory gives over 0.88, where the KV pool is what binds."""
    rows, lines = [], []
    lengths = Lengths(prompt=1024, output=512, spread=0.5, longest_output=2048, longest_prompt=4096)
    for share in (0.88, 0.95):
        points = []
        for rate in (0.25, 0.5, 1.0, 1.5, 2.0):
            setup = set_up(
                "llama-3.1-70b", "h100x8", tp=2, max_model_len=8192, memory_utilization=share, max_num_seqs=256
            )
            found = run(setup, round(500 * scale), rate, lengths)
            points.append((rate, found["latency_ms"]["ttft"]["p50"] / 1000))
            names = ("running", "output_per_s", "preemptions", "kv_usage", "latency_ms")
            rows.append({"share": share, "rate": rate, "num_blocks": setup.info.num_blocks, **_some(found, *names)})
        lines.append(Line(f"{share:g} of the memory", points))
    return rows, document("TTFT p50 by load and share of the memory", "requests per second", "TTFT p50, s", lines)


_REPLICAS = (
    ("llama-3.1-70b", "h100x8", "fp8", 8),
    ("llama-3.1-70b", "h100x8", "fp8", 4),
    ("llama-3.1-70b", "h100x8", "fp8", 2),
    ("llama-3.1-70b", "h200x8", "fp8", 2),
    ("llama-3.1-70b", "h200x8", "fp8", 1),
    ("llama-3.1-70b", "a100x8", "fp8", 8),
    ("llama-3.1-70b", "a100x8", "fp8", 4),
    ("llama-3.1-8b", "h100x8", "fp8", 1),
    ("llama-3.1-8b", "a100x8", "fp8", 1),
    ("smollm2-135m", "cpu2", "int8", 1),
)


def price(scale: float) -> Answer:
    """Tokens per dollar of the largest load of which nearly all requests meet the bounds."""
    rows: list[Figures] = []
    lines: dict[str, list[tuple[float, float]]] = {}
    lengths = Lengths(prompt=1024, output=256, spread=0.6, longest_output=1024, longest_prompt=4096)
    for model, hardware, format, tp in _REPLICAS:
        setup = set_up(model, hardware, format=format, tp=tp, max_model_len=8192)
        requests = round((250 if model == "llama-3.1-70b" else 600) * scale)

        def does(rate: float, setup: Setup = setup, requests: int = requests) -> bool:
            return meets(run(setup, requests, rate, lengths))

        rate = most_rate(does, 4.0, precision=0.1)
        found = run(setup, requests, rate, lengths) if rate else {"total_per_s": 0.0, "output_per_s": 0.0}
        row = {"model": model, "format": format, "devices": f"{tp} of {hardware}", "price_per_hour": setup.price}
        row |= {"most_rate": rate, **_some(found, "total_per_s", "output_per_s")}
        rows.append(row | {"tokens_per_dollar": found["total_per_s"] * 3600 / setup.price})
        if model == "llama-3.1-70b" and format == "fp8":
            lines.setdefault(hardware, []).append((setup.price, found["total_per_s"]))
    plot = document(
        "Llama-3.1-70B, fp8: tokens per second within the bounds, by price",
        "dollars per hour of a replica",
        "total tokens per second",
        [Line(name, sorted(points)) for name, points in lines.items()],
    )
    return rows, plot


def replicas(scale: float) -> Answer:
    """How many replicas a bursty load needs, by routing policy."""
    rows, lines = [], []
    lengths = Lengths(
        prompt=512, output=256, spread=0.8, longest_output=2048, longest_prompt=4096, prefix=1024, groups=400
    )
    setup = set_up("llama-3.1-8b", "h100x8", format="fp8", tp=1, max_model_len=8192, num_blocks=4096)
    for router in ("round-robin", "least-loaded", "prefix"):
        points: dict[int, float] = {}

        def does(count: int, router: str = router, points: dict[int, float] = points) -> bool:
            found = run(setup, round(3000 * scale), 120.0, lengths, burstiness=0.2, replicas=count, router=router)
            points[count] = 100 * found["goodput_share"]
            return meets(found)

        needed = least_count(does, 64)
        rows.append({"router": router, "needed": needed, "met_percent": dict(sorted(points.items()))})
        lines.append(Line(router, sorted(points.items())))
    return rows, document("Requests that meet the bounds", "replicas", "%", lines, y_max=100)


def _some(figures: Figures, *names: str) -> Figures:
    return {name: figures[name] for name in names}


QUESTIONS: dict[str, Callable[[float], Answer]] = {
    "batching": batching,
    "paging": paging,
    "chunking": chunking,
    "memory": memory,
    "price": price,
    "replicas": replicas,
}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else value


def _answers(names: list[str], scale: float) -> Iterator[tuple[str, list[Figures], str]]:
    for name in names:
        rows, plot = QUESTIONS[name](scale)
        yield name, _rounded(rows), plot


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *QUESTIONS], metavar="NAME")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    for name, rows, plot in _answers(args.names or list(QUESTIONS), 0.05 if args.small else 1.0):
        for row in rows:
            print(name, json.dumps(row), flush=True)
        if not args.small:
            RESULTS.mkdir(parents=True, exist_ok=True)
            PLOTS.mkdir(parents=True, exist_ok=True)
            doc = (QUESTIONS[name].__doc__ or "").strip()
            content = {"question": doc, "command": f"python benchmarks/planning.py {name}", "rows": rows}
            write(str(RESULTS / f"{name}.json"), json.dumps(content, indent=1) + "\n")
            write(str(PLOTS / f"{name}.svg"), plot)


if __name__ == "__main__":
    main()
