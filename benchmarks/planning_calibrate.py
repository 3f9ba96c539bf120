"""Fits the machine profile `cpu2` to the native executor, and holds its predictions against what is measured.

python benchmarks/planning_calibrate.py [--rounds 3] [--format int8] [--write] [--small]

The constants are the efficiencies and overheads of legato.executor.roofline.Hardware. They are fitted to single steps
of workloads that are not those of the test: `agent`, and prompts of many lengths. Then `single`, `uniform` and `mixed`
are run and simulated, with the same scheduler settings: output tok/s and mean TTFT within 10 % is the bar. Scheduler
and executor are driven without a server around them. --write: put the constants into hardware.toml. --small: see that
it runs, in a minute, and write nothing. Writes benchmarks/results/planning/calibrate.json.
"""

import json
import math
import random
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from common import arguments, say

from legato.bench.machine_info import header
from legato.bench.report import write
from legato.bench.workloads import Job, standard
from legato.core.config import CacheConfig, ModelConfig, SchedulerConfig
from legato.core.types import Executor, ExecutorInfo, Request, SamplingParams, StepPlan
from legato.engine.start import engine_file
from legato.executor.native import NativeExecutor
from legato.executor.roofline import Hardware, ModelProfile, Numbers, Roofline
from legato.scheduler.scheduler import Scheduler
from legato.simulate.cluster import Cluster
from legato.simulate.hardware import BUILT_IN, find_hardware
from legato.simulate.model_profile import read_profile
from legato.simulate.outcome import Outcome
from legato.simulate.routers import make_router
from legato.simulate.setup import FORMATS
from legato.simulate.traffic import Visit

RESULTS = Path(__file__).parent / "results" / "planning"
FITTED = ("matmul", "prefill", "weights", "cache", "vector", "step_s", "sequence_s")
FACTORS = (4.0, 2.0, 1.4, 1.2, 1.1, 1.04, 1.015)  # by which the fit moves a constant, ever smaller
MOST_STEPS = 150  # of each probe that the fit looks at
BAR = 0.10


@dataclass(frozen=True)
class Measured:
    """One run of a workload: seconds, mean seconds to the first token, and each step with its seconds."""

    seconds: float
    ttft_s: float
    steps: Sequence[tuple[StepPlan, float]]


def run(executor: Executor, config: SchedulerConfig, jobs: Sequence[Job]) -> Measured:
    """All jobs at once, to the end."""
    scheduler = Scheduler(executor.info(), config)
    for index, job in enumerate(jobs):
        params = SamplingParams(temperature=0.0, max_tokens=job.max_tokens, ignore_eos=True, seed=0)
        scheduler.add(Request(str(index), job.prompt, params, time.monotonic()))
    start = before = time.perf_counter()
    first: dict[str, float] = {}
    steps = []
    while (plan := scheduler.plan()) is not None:
        executor.launch(plan)
        events = scheduler.commit(plan, executor.collect(plan.step_id))
        now = time.perf_counter()
        for event in events:
            first.setdefault(event.request_id, now - start)
        steps.append((plan, now - before))
        before = now
    return Measured(before - start, statistics.fmean(first.values()), steps)


def simulate(cost: Roofline, info: ExecutorInfo, config: SchedulerConfig, jobs: Sequence[Job]) -> tuple[float, float]:
    """Seconds, and mean seconds to the first token, as `run` would find them."""
    outcome = Outcome({})
    cluster = Cluster(info, cost, config, make_router("round-robin"), outcome)
    figures = cluster.run(Visit(0.0, len(job.prompt), job.max_tokens) for job in jobs).to_json()
    return figures["duration_s"], figures["latency_ms"]["ttft"]["mean"] / 1000


def probes(small: bool) -> list[list[Job]]:
    """What is fitted to: answers of many lengths, and prompts of many lengths up to long ones."""
    rng = random.Random(1)
    lengths = [30, 100] if small else [30, 100, 300, 700, 1500, 3000]
    prompts = [Job(tuple(rng.randrange(100, 49_000) for _ in range(n)), 40) for n in lengths for _ in range(3)]
    return [standard(seed=1)["agent"][: 6 if small else 64], prompts, prompts[:1], prompts[-2:]]


def fit(
    start: Hardware, model: ModelProfile, numbers: Numbers, probed: Sequence[Sequence[tuple[StepPlan, float]]]
) -> tuple[Hardware, float]:
    """The constants with the least error: |log(predicted / measured)| of each step, weighed by its seconds.

    Each probe counts the same, however long it takes: one stream is as much a use of a machine as thirty. Returns the
    constants and the error. One constant is moved at a time, by ever smaller factors, as long as that helps.
    """
    rng = random.Random(0)
    chosen = [rng.sample(list(steps), min(MOST_STEPS, len(steps))) for steps in probed]
    weighed = [
        (plan, seconds, seconds / sum(taken for _, taken in steps) / len(chosen))
        for steps in chosen
        for plan, seconds in steps
    ]

    def error(hardware: Hardware) -> float:
        cost = Roofline(model, hardware, numbers)
        return sum(weight * abs(math.log(cost.step_s(plan) / seconds)) for plan, seconds, weight in weighed)

    best, least = start, error(start)
    for factor in FACTORS:
        moved = True
        while moved:
            moved = False
            for name in FITTED:
                for scale in (factor, 1 / factor):
                    candidate = replace(best, **{name: getattr(best, name) * scale})
                    found = error(candidate)
                    if found < least - 1e-5:
                        best, least, moved = candidate, found, True
    return best, least


def check(
    executor: Executor, config: SchedulerConfig, cost: Roofline, workloads: dict[str, list[Job]], rounds: int
) -> list[dict[str, Any]]:
    """Predicted beside measured, the median of the rounds."""
    rows = []
    for name, jobs in workloads.items():
        runs = [run(executor, config, jobs) for _ in range(rounds)]
        seconds, ttft_s = simulate(cost, executor.info(), config, jobs)
        tokens = sum(job.max_tokens for job in jobs)
        measured_s = statistics.median(each.seconds for each in runs)
        measured_ttft_s = statistics.median(each.ttft_s for each in runs)
        row = {
            "workload": name,
            "output_per_s": {"measured": tokens / measured_s, "predicted": tokens / seconds},
            "ttft_s": {"measured": measured_ttft_s, "predicted": ttft_s},
            "rounds_s": [each.seconds for each in runs],
            "errors": {"output_per_s": measured_s / seconds - 1, "ttft_s": ttft_s / measured_ttft_s - 1},
        }
        row["hit"] = all(abs(value) <= BAR for value in row["errors"].values())
        say(json.dumps(row))
        rows.append(row)
    return rows


def put_into_profile(hardware: Hardware) -> None:
    """The fitted constants into the table of the machine, the rest of the file as it is."""
    head, mark, table = BUILT_IN.read_text().partition(f"[{hardware.name}]")
    for name in FITTED:
        table = re.sub(rf"(?m)^{name} = .*$", f"{name} = {getattr(hardware, name):.4g}", table, count=1)
    write(str(BUILT_IN), head + mark + table)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--format", default="int8")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    config = SchedulerConfig(enable_prefix_caching=False)
    file = engine_file(ModelConfig(format=args.format))
    executor = NativeExecutor.open(file, cache=CacheConfig(), scheduler=config)
    model, start = read_profile("smollm2-135m"), find_hardware("cpu2")[0]
    numbers = Numbers(args.format, FORMATS[args.format], 2.0)
    probed = [
        [step for _ in range(args.rounds) for step in run(executor, config, jobs).steps] for jobs in probes(args.small)
    ]
    fitted, error = fit(start, model, numbers, probed)
    say(
        f"{sum(map(len, probed))} steps, mean error {error:.1%}: "
        + ", ".join(f"{n} {getattr(fitted, n):.4g}" for n in FITTED)
    )
    workloads = {name: jobs[:2] if args.small else jobs for name, jobs in standard().items() if name != "agent"}
    rows = check(executor, config, Roofline(model, fitted, numbers), workloads, args.rounds)
    executor.close()
    if args.write:
        put_into_profile(fitted)
    head = header({}, None)
    head["command"] = "python benchmarks/planning_calibrate.py"
    constants = {name: asdict(fitted)[name] for name in FITTED}
    content = {**head, "format": args.format, "constants": constants, "step_error": error, "workloads": rows}
    if not args.small:
        RESULTS.mkdir(parents=True, exist_ok=True)
        write(str(RESULTS / "calibrate.json"), json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
