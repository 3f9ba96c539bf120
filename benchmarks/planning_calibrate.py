"""Fits the machine profile `cpu2` to the native executor, and holds its predictions against what is measured.

python benchmarks/planning_calibrate.py [--rounds 5] [--format int8] [--write] [--small]

The constants are the efficiencies and overheads of legato.executor.roofline.Hardware. Linear layers have their own, all
else has its own, and each are fitted to what the executor's counters say of their part of a step, over steps made for
it: decodes of 1 to 64 streams, short and long contexts, prompts of many lengths, and an agent workload. The bandwidth
is measured in the same sitting. Then `single`, `uniform` and `mixed`, which the fit has not seen, are simulated with
the same scheduler settings: output tok/s and mean TTFT within 10 % is the bar. Probes and workloads take turns, so that
a machine that changes its speed does so for both; the median run of a workload counts. Scheduler and executor are
driven without a server around them.

--write: put the constants into hardware.toml. --small: see that it runs, in a minute, and write nothing. Five rounds
take about five minutes. Writes benchmarks/results/planning/calibrate.json.
"""

import json
import random
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from common import arguments, say

from legato.bench.machine import bandwidth
from legato.bench.machine_info import header
from legato.bench.report import write
from legato.bench.workloads import FIRST_ID, LAST_ID, Job, standard
from legato.core.config import CacheConfig, ModelConfig, SchedulerConfig
from legato.core.types import Request, SamplingParams, StepPlan
from legato.engine.start import engine_file
from legato.executor.native import NativeExecutor
from legato.executor.roofline import Hardware, ModelProfile, Numbers, Roofline, work_of
from legato.scheduler.scheduler import Scheduler
from legato.simulate.cluster import Cluster
from legato.simulate.hardware import BUILT_IN, find_hardware
from legato.simulate.model_profile import read_profile
from legato.simulate.outcome import Outcome
from legato.simulate.routers import make_router
from legato.simulate.setup import FORMATS
from legato.simulate.traffic import Visit

RESULTS = Path(__file__).parent / "results" / "planning"
FACTORS = (2.0, 1.4, 1.2, 1.1, 1.04, 1.015, 1.005)  # by which the fit moves a constant, ever smaller
LEAST = 1e-9  # share of a machine's constant that the fit goes down to
REPEATS = {"single": 5, "1 stream": 3}  # runs in a round of what takes half a second
USUAL = 0.1  # error of a step, as a share of its time
BAR = 0.10


class Part(NamedTuple):
    """A part of a step: the constants that it depends on, the executor's counters of it, and its predicted seconds."""

    constants: tuple[str, ...]
    counters: tuple[str, ...]
    predict: Callable[[Roofline, StepPlan], float]


PARTS = {
    "linear": Part(
        ("matmul", "weights", "overlap"),
        ("linear", "logits"),
        lambda cost, plan: cost.linear_s(plan.num_rows, len(plan.out_rows)),
    ),
    "others": Part(  # whatever is counted elsewhere or nowhere
        ("prefill", "cache", "vector", "step_s", "sequence_s"),
        (),
        lambda cost, plan: cost.attention_s(plan) + cost.rest_s(plan.num_rows, plan.num_seqs),
    ),
}
FITTED = tuple(name for part in PARTS.values() for name in part.constants)


@dataclass(frozen=True)
class Step:
    """seconds: from the end of the step before. parts: of them, by name in PARTS."""

    plan: StepPlan
    seconds: float
    parts: Mapping[str, float]

    @property
    def kind(self) -> str:
        decodes = work_of(self.plan, None).decodes
        return "decode" if decodes == self.plan.num_seqs else "mixed" if decodes else "prefill"


@dataclass(frozen=True)
class Measured:
    """One run of a workload: seconds, mean seconds to the first token, and its steps."""

    seconds: float
    ttft_s: float
    steps: Sequence[Step]


def run(executor: NativeExecutor, config: SchedulerConfig, jobs: Sequence[Job]) -> Measured:
    """All jobs at once, to the end."""
    scheduler = Scheduler(executor.info(), config)
    for index, job in enumerate(jobs):
        params = SamplingParams(temperature=0.0, max_tokens=job.max_tokens, ignore_eos=True, seed=0)
        scheduler.add(Request(str(index), job.prompt, params, time.monotonic()))
    executor.profile(reset=True)
    start = before = time.perf_counter()
    first: dict[str, float] = {}
    steps = []
    while (plan := scheduler.plan()) is not None:
        executor.launch(plan)
        events = scheduler.commit(plan, executor.collect(plan.step_id))
        counted = executor.profile(reset=True)
        now = time.perf_counter()
        for event in events:
            first.setdefault(event.request_id, now - start)
        parts = {name: sum(counted[key] for key in part.counters) * 1e-9 for name, part in PARTS.items()}
        parts["others"] = now - before - sum(parts.values())
        steps.append(Step(plan, now - before, parts))
        before = now
    return Measured(before - start, statistics.fmean(first.values()), steps)


def simulate(
    cost: Roofline, executor: NativeExecutor, config: SchedulerConfig, jobs: Iterable[Job]
) -> tuple[float, float]:
    """Seconds, and mean seconds to the first token, as `run` would find them."""
    cluster = Cluster(executor.info(), cost, config, make_router("round-robin"), Outcome({}))
    figures = cluster.run(Visit(0.0, len(job.prompt), job.max_tokens) for job in jobs).to_json()
    return figures["duration_s"], figures["latency_ms"]["ttft"]["mean"] / 1000


def probes() -> dict[str, list[Job]]:
    """What is fitted to."""
    rng = random.Random(1)

    def jobs(count: int, num_in: int, num_out: int) -> list[Job]:
        return [Job(tuple(rng.randrange(FIRST_ID, LAST_ID) for _ in range(num_in)), num_out) for _ in range(count)]

    short = [(1, 100), (2, 60), (4, 60), (8, 50), (16, 50), (32, 40), (64, 25)]
    return {
        **{f"{count} stream" + "s" * (count > 1): jobs(count, 24, num_out) for count, num_out in short},
        **{f"{count} x {num_in}": jobs(count, num_in, 40) for count, num_in in ((1, 2000), (4, 900), (12, 400))},
        **{f"prompt of {num_in}": jobs(1, num_in, 1) for num_in in (16, 64, 128, 256, 450)},
        "agent": standard(seed=1)["agent"][:64],
    }


def measure(
    executor: NativeExecutor, config: SchedulerConfig, sets: Mapping[str, Sequence[Job]], rounds: int
) -> dict[str, list[Measured]]:
    """Each set in turn, that many times over."""
    found = defaultdict(list)
    for index in range(rounds):
        for name, jobs in sets.items():
            for _ in range(REPEATS.get(name, 1)):
                found[name].append(run(executor, config, jobs))
        say(f"round {index + 1} of {rounds}")
    return found


def weighed(probed: Mapping[str, Sequence[Measured]]) -> list[tuple[Step, float]]:
    """The steps of all probes, and what each counts.

    The probes count the same, however long they take: one stream is as much a use of a machine as thirty. So do the
    steps of a probe that are of one kind, and each kind counts by its share of the probe's seconds.
    """
    found = []
    for runs in probed.values():
        by_kind = defaultdict(list)
        for measured in runs:
            for step in measured.steps:
                by_kind[step.kind].append(step)
        total = sum(measured.seconds for measured in runs)
        for steps in by_kind.values():
            weight = sum(step.seconds for step in steps) / total / len(steps)
            found += [(step, weight) for step in steps]
    return found


def fit(start: Hardware, model: ModelProfile, numbers: Numbers, probed: Mapping[str, Sequence[Measured]]) -> Hardware:
    """The constants with the least error, each part for itself; then all slower by what steps take beyond that.

    Few steps take far longer than the others of their kind, because something else ran or the caches were cold. The
    error hardly sees them (`_loss`), but a run is slower for them: by the same share of its time wherever it is.
    """
    steps = weighed(probed)
    best = start
    for name in PARTS:
        best = _fit_part(name, best, model, numbers, steps)
    cost = Roofline(model, best, numbers)
    slower = sum(step.seconds for step, _ in steps) / sum(cost.step_s(step.plan) for step, _ in steps)
    say(f"{len(steps)} steps; with those that stall, {slower - 1:.1%} longer")
    rates = {name: getattr(best, name) / slower for name in ("matmul", "weights", "prefill", "cache", "vector")}
    return replace(best, **rates, step_s=best.step_s * slower, sequence_s=best.sequence_s * slower)


def _fit_part(
    name: str, best: Hardware, model: ModelProfile, numbers: Numbers, steps: Sequence[tuple[Step, float]]
) -> Hardware:
    """One constant is moved at a time, by ever smaller factors, as long as that helps."""
    part = PARTS[name]

    def error(hardware: Hardware) -> float:
        cost = Roofline(model, hardware, numbers)
        return sum(
            weight * _loss((part.predict(cost, step.plan) - step.parts[name]) / step.seconds) for step, weight in steps
        )

    least = error(best)
    floors = {constant: LEAST * getattr(best, constant) for constant in part.constants}
    for factor in FACTORS:
        moved = True
        while moved:
            moved = False
            for constant, floor in floors.items():
                for scale in (factor, 1 / factor):
                    value = getattr(best, constant) * scale
                    if value < floor or (constant == "overlap" and value > 1):
                        continue
                    candidate = replace(best, **{constant: value})
                    found = error(candidate)
                    if found < least * (1 - 1e-6):
                        best, least, moved = candidate, found, True
    return best


def _loss(error: float) -> float:
    """Huber's: the square, but beyond USUAL the straight line that continues it."""
    size = abs(error)
    return size * size if size < USUAL else USUAL * (2 * size - USUAL)


def residuals(cost: Roofline, probed: Mapping[str, Sequence[Measured]]) -> dict[str, float]:
    """Of each probe, over all its runs: predicted over measured seconds - 1."""
    return {
        name: sum(cost.step_s(step.plan) for measured in runs for step in measured.steps)
        / sum(measured.seconds for measured in runs)
        - 1
        for name, runs in probed.items()
    }


def check(
    executor: NativeExecutor,
    config: SchedulerConfig,
    cost: Roofline,
    workloads: Mapping[str, Sequence[Job]],
    runs: Mapping[str, Sequence[Measured]],
) -> list[dict[str, Any]]:
    """Predicted beside measured, the median of the runs."""
    rows = []
    for name, jobs in workloads.items():
        seconds, ttft_s = simulate(cost, executor, config, jobs)
        tokens = sum(job.max_tokens for job in jobs)
        measured_s = statistics.median(each.seconds for each in runs[name])
        measured_ttft_s = statistics.median(each.ttft_s for each in runs[name])
        row = {
            "workload": name,
            "output_per_s": {"measured": tokens / measured_s, "predicted": tokens / seconds},
            "ttft_s": {"measured": measured_ttft_s, "predicted": ttft_s},
            "runs_s": [each.seconds for each in runs[name]],
            "errors": {"output_per_s": measured_s / seconds - 1, "ttft_s": ttft_s / measured_ttft_s - 1},
        }
        row["hit"] = all(abs(value) <= BAR for value in row["errors"].values())
        say(json.dumps(row))
        rows.append(row)
    return rows


def put_into_profile(hardware: Hardware) -> None:
    """The fitted constants into the table of the machine, the rest of the file as it is."""
    head, mark, table = BUILT_IN.read_text().partition(f"[{hardware.name}]")
    for name in ("bandwidth", *FITTED):
        table = re.sub(rf"(?m)^{name} = .*$", f"{name} = {getattr(hardware, name):.4g}", table, count=1)
    write(str(BUILT_IN), head + mark + table)


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(rounds=5)
    parser.add_argument("--format", default="int8")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    config = SchedulerConfig(enable_prefix_caching=False)
    executor = NativeExecutor.open(engine_file(ModelConfig(format=args.format)), cache=CacheConfig(), scheduler=config)
    details = executor.info().details
    model, machine = read_profile("smollm2-135m"), find_hardware("cpu2")[0]
    numbers = Numbers(args.format, FORMATS[args.format], 2.0)
    workloads = {name: jobs for name, jobs in standard().items() if name != "agent"}
    probed = probes()
    if args.small:
        workloads, probed = ({name: jobs[:2] for name, jobs in sets.items()} for sets in (workloads, probed))
    run(executor, config, probed["agent"])  # touches weights and buffers for the first time
    read = bandwidth(details["isa"], int(details["threads"]))
    runs = measure(executor, config, {**probed, **workloads}, args.rounds)
    probed_runs = {name: runs[name] for name in probed}
    fitted = fit(replace(machine, bandwidth=read), model, numbers, probed_runs)
    cost = Roofline(model, fitted, numbers)
    fits = residuals(cost, probed_runs)
    say(", ".join(f"{name} {error:+.1%}" for name, error in fits.items()))
    constants = {name: asdict(fitted)[name] for name in ("bandwidth", *FITTED)}
    say(", ".join(f"{name} {value:.4g}" for name, value in constants.items()))
    rows = check(executor, config, cost, workloads, runs)
    executor.close()
    if args.write and not args.small:
        put_into_profile(fitted)
    head = header({}, None)
    head["command"] = "python benchmarks/planning_calibrate.py"
    content = {**head, "format": args.format, "constants": constants, "probes": fits, "workloads": rows}
    if not args.small:
        RESULTS.mkdir(parents=True, exist_ok=True)
        write(str(RESULTS / "calibrate.json"), json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
