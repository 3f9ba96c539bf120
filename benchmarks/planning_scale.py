"""A million requests over 256 simulated replicas, on one core; routing policies; and leaping against stepping.

python benchmarks/planning_scale.py scale [--requests 1000000] [--replicas 256]
python benchmarks/planning_scale.py routers [--requests 6000] [--replicas 8]
python benchmarks/planning_scale.py leap [--requests 10000]

scale    Llama-3.1-8B in fp8 on one H100 each, behind the prefix-aware router. Prompts of 256 tokens that a group of
         requests shares and 64 of their own, answers of 200 tokens on average; blocks of 64 tokens. Tells CPU seconds
         and peak memory of this process.
routers  The same model with a cache that cannot hold all prefixes, at rising load: what the routing policy changes.
leap     Traffic on a pool that preempts, planned step by step and by leaps: every token of every request comes at the
         same time, or the script fails.

Each writes benchmarks/results/planning/NAME.json; routers a plot beside it in docs/planning.
"""

import argparse
import gc
import hashlib
import json
import resource
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from legato.bench.machine_info import header
from legato.bench.plot import Line, document
from legato.bench.report import write
from legato.core.types import TokenEvent
from legato.simulate.outcome import Outcome
from legato.simulate.setup import Setup, set_up
from legato.simulate.traffic import Lengths, drawn

ROOT = Path(__file__).parents[1]
ROUTERS = ("round-robin", "least-loaded", "prefix")


def replica(**settings: Any) -> Setup:
    return set_up("llama-3.1-8b", "h100x8", format="fp8", tp=1, max_model_len=8192, **settings)


def scale(requests: int, replicas: int) -> dict[str, Any]:
    gc.disable()  # nothing here is cyclic; walking the live objects would cost a third of the time
    setup = replica(block_size=64, num_blocks=2048)
    lengths = Lengths(prompt=64, output=200, spread=0.7, longest_output=2000, prefix=256, groups=20_000)
    cluster = setup.cluster(Outcome({"ttft": 500.0}), replicas=replicas, router="prefix")
    began = time.process_time()
    figures = cluster.run(drawn(requests, 2.0 * replicas, 1.0, lengths, seed=0)).to_json()
    seconds = time.process_time() - began
    return {
        "requests": requests,
        "replicas": replicas,
        "cpu_s": seconds,
        "us_per_request": 1e6 * seconds / requests,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "mean_output": figures["output_tokens"] / requests,
        "times_real_time": figures["duration_s"] / seconds,
        "figures": figures,
    }


def routers(requests: int, replicas: int) -> dict[str, Any]:
    setup = replica(block_size=64, num_blocks=1024)
    lengths = Lengths(
        prompt=128, output=128, spread=0.7, longest_output=1000, longest_prompt=2000, prefix=2048, groups=300
    )
    rows, lines = [], []
    for router in ROUTERS:
        points = []
        for rate in (5.0, 10.0, 20.0, 30.0, 40.0):
            cluster = setup.cluster(Outcome({"ttft": 500.0}), replicas=replicas, router=router)
            figures = cluster.run(drawn(requests, rate * replicas, 1.0, lengths, seed=0)).to_json()
            ttft = figures["latency_ms"]["ttft"]
            hits = figures["cached_tokens"] / figures["prompt_tokens"]
            rows.append({"router": router, "rate_per_replica": rate, "ttft_ms": ttft, "cached_share": hits})
            rows[-1]["met"] = figures["goodput_share"]
            points.append((rate, ttft["p99"]))
        lines.append(Line(router, points))
    plot = document("TTFT p99 by load and routing policy", "requests per second and replica", "ms", lines)
    return {"requests": requests, "replicas": replicas, "rows": rows, "plot": plot}


class Digest(Outcome):
    """Of every token's time, request and value, whatever the order in which steps are reported."""

    def __init__(self) -> None:
        super().__init__({})
        self.sum = self.launches = 0

    def on_steps(self, begin_s: float, ends_s: Sequence[float], events: Iterable[TokenEvent]) -> list[str]:
        events = list(events)
        self.launches += 1
        for event in events:
            for at_s, token in zip(ends_s[-len(event.tokens) :] if event.tokens else (), event.tokens, strict=True):
                line = f"{at_s!r} {event.request_id} {token} {event.finish if at_s == ends_s[-1] else None}"
                self.sum += int.from_bytes(hashlib.blake2b(line.encode(), digest_size=8).digest(), "little")
        return super().on_steps(begin_s, ends_s, events)


def leap(requests: int, replicas: int) -> dict[str, Any]:
    setup = replica(num_blocks=1200, max_num_seqs=64)
    lengths = Lengths(
        prompt=300, output=200, spread=0.8, longest_output=2000, longest_prompt=4000, prefix=128, groups=50
    )
    found = []
    for leaps in (False, True):
        outcome = Digest()
        cluster = setup.cluster(outcome, replicas=replicas, leap=leaps)
        began = time.process_time()
        figures = cluster.run(drawn(requests, 20.0 * replicas, 0.5, lengths, seed=0)).to_json()
        found.append((outcome.sum, figures["output_tokens"], figures["preemptions"], figures["steps"]))
        print("leap" if leaps else "step", time.process_time() - began, "s,", outcome.launches, "launches", found[-1])
    if found[0] != found[1]:
        raise SystemExit("leaping and stepping differ")
    _, tokens, preemptions, steps = found[0]
    return {"requests": requests, "tokens": tokens, "preemptions": preemptions, "steps": steps, "equal": True}


_DEFAULTS = {"scale": (scale, 1_000_000, 256), "routers": (routers, 6000, 8), "leap": (leap, 10_000, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(_DEFAULTS))
    parser.add_argument("--requests", type=int)
    parser.add_argument("--replicas", type=int)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results" / "planning")
    args = parser.parse_args()
    function, requests, replicas = _DEFAULTS[args.name]
    found = function(args.requests or requests, args.replicas or replicas)
    if plot := found.pop("plot", None):
        write(str(ROOT / "docs" / "planning" / f"{args.name}.svg"), plot)
    head = header({}, None)
    head["command"] = f"python benchmarks/planning_scale.py {args.name}"
    args.results.mkdir(parents=True, exist_ok=True)
    write(str(args.results / f"{args.name}.json"), json.dumps({**head, **found}, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
