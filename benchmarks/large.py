"""Larger models with random weights, one sequence: decode and prefill beside llama.cpp, OpenVINO and the machine.

python benchmarks/large.py --peers DIR --work DIR --prepare [--shapes llama1b wide] [--without openvino]
python benchmarks/large.py --peers DIR --work DIR [--rounds 3] ...

--prepare makes the checkpoints, Legato's engine files and the peers' files in the work folder (about 12 GB and some
minutes for each shape; what is there stays). Without it they are measured, in turn: decode is 64 tokens behind 16,
prefill 512 tokens. llama.cpp by its own llama-bench; its Q8_0 stands beside int8, its Q4_0 beside int4. The ceiling of
decode is the read bandwidth over the bytes of the linear weights; that of prefill the int8 peak over their operations,
both limits measured after each run of Legato, since the clock of a shared host drifts.
"""

import argparse
import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from common import Result, arguments, peers_dir, run, run_json, say
from engines import Run, awake, openvino, threads, write_work
from make_checkpoint import SHAPES, make

from legato.bench.machine import Limits, default_level
from legato.bench.throughput import run_jobs
from legato.bench.workloads import WARM_UP, Job
from legato.build.engine_file import EngineFile
from legato.core.config import EngineConfig, ModelConfig, SchedulerConfig
from legato.engine.llm import LLM
from legato.engine.start import engine_file, start

QUANTIZED = {"int8": "Q8_0", "int4": "Q4_0"}
PREFILL, PROMPT, STEPS = 512, 16, 64
PROMPTS = tuple(range(100, 100 + PREFILL))
WORK = {
    "first": [Job(PROMPTS[:PROMPT], 1)],
    "all": [Job(PROMPTS[:PROMPT], STEPS + 1)],
    "prefill": [Job(PROMPTS, 1)],
}
Rates = dict[str, float]  # tok/s of decode and of prefill


def main() -> None:
    parser = arguments(__doc__)
    peers_dir(parser)
    parser.add_argument("--work", type=Path, required=True, help="folder for the models")
    parser.add_argument("--prepare", action="store_true", help="make the files, measure nothing")
    parser.add_argument("--shapes", nargs="+", default=["llama1b", "wide"], choices=SHAPES)
    parser.add_argument("--formats", nargs="+", default=list(QUANTIZED), choices=QUANTIZED)
    parser.add_argument("--without", nargs="+", default=[], help="peers to leave out: openvino, llama")
    args = parser.parse_args()
    for shape in args.shapes:
        if args.prepare:
            prepare(args, shape)
        else:
            measure(args, shape)


def prepare(args: argparse.Namespace, shape: str) -> None:
    folder = args.work / shape
    if not (folder / "model.gguf").exists():
        say(f"{shape}: writing the checkpoint")
        make(SHAPES[shape], folder, args.peers / "hf")
    for format in args.formats:
        say(f"{shape}: {format} engine file")
        engine_file(model(args, shape, format))
        file = folder / f"{QUANTIZED[format]}.gguf"
        if "llama" not in args.without and not file.exists():
            program = args.peers / "llama" / "bin" / "llama-quantize"
            run([program, folder / "model.gguf", file, QUANTIZED[format]])
    if "openvino" not in args.without and not (folder / "ov_int8").exists():
        say(f"{shape}: OpenVINO int8")
        optimum = args.peers / "openvino" / "bin" / "optimum-cli"
        flags = ("--task", "text-generation-with-past", "--weight-format", "int8")
        run([optimum, "export", "openvino", "-m", folder, *flags, folder / "ov_int8"])


def model(args: argparse.Namespace, shape: str, format: str) -> ModelConfig:
    return ModelConfig(model=str(args.work / shape), format=format, cache_dir=str(args.work / "cache"))


def measure(args: argparse.Namespace, shape: str) -> None:
    """Each engine in turn, for each format; a result file per shape."""
    result = Result(f"large_{shape}", args)
    with ExitStack() as stack:
        path = write_work(stack, WORK)
        for format in args.formats:
            engines: dict[str, Callable[[], Rates]] = {"Legato": legato_rates(model(args, shape, format))}
            file = args.work / shape / f"{QUANTIZED[format]}.gguf"
            if "llama" not in args.without and file.exists():
                engines[f"llama.cpp {QUANTIZED[format]}"] = llama_rates(args.peers, file)
            peer = openvino(args.peers, args.work / shape / "ov_int8", "int8")
            if format == "int8" and "openvino" not in args.without and peer.installed:
                [(name, seconds)] = awake(stack, [peer], path).items()
                engines[name] = peer_rates(seconds)
            rounds: dict[str, list[Rates]] = {name: [] for name in engines}
            limits = []
            for index in range(args.rounds):
                for name, rates in engines.items():
                    rounds[name].append(rates())
                    say(f"{shape} {format}, round {index + 1}, {name}: {described(rounds[name][-1])}")
                    if name == "Legato":
                        limits.append(limits_now())
            add(result, f"{shape}-{format}", rounds, limits, engine_file(model(args, shape, format)))
    result.save()


def described(rates: Rates) -> str:
    return ", ".join(f"{phase} {rate:.1f} tok/s" for phase, rate in rates.items())


def rates_of(seconds: Mapping[str, float]) -> Rates:
    return {"decode": STEPS / (seconds["all"] - seconds["first"]), "prefill": PREFILL / seconds["prefill"]}


def legato_rates(config: ModelConfig) -> Callable[[], Rates]:
    def rates() -> Rates:
        scheduler = SchedulerConfig(enable_prefix_caching=False)
        with LLM.over(start(EngineConfig(model=config, scheduler=scheduler))) as llm:
            run_jobs(llm, [WARM_UP])
            return rates_of({name: run_jobs(llm, jobs)[0] for name, jobs in WORK.items()})

    return rates


def peer_rates(seconds: Run) -> Callable[[], Rates]:
    return lambda: rates_of({name: seconds(name) for name in WORK})


def llama_rates(peers: Path, file: Path) -> Callable[[], Rates]:
    command = [
        peers / "llama" / "bin" / "llama-bench",
        "-m",
        file,
        "-t",
        threads(),
        "-fa",
        "1",
        "-r",
        "1",
        "-o",
        "json",
    ]

    def rates() -> Rates:
        found: list[dict[str, Any]] = run_json([*command, "-p", PREFILL, "-n", STEPS])
        return {"decode" if test["n_gen"] else "prefill": test["avg_ts"] for test in found}

    return rates


def limits_now() -> Rates:
    """Bytes read per second, and int8 operations."""
    limits = Limits(default_level(), threads())
    return {"decode": limits.bandwidth(0.5), "prefill": limits.peak("int8", 0.3)}


def add(result: Result, key: str, rounds: Mapping[str, list[Rates]], limits: list[Rates], file: EngineFile) -> None:
    per_token, notes = work_of(file)
    for phase, amount in per_token.items():
        rates = {engine: [values[phase] for values in of] for engine, of in rounds.items()}
        ours = rates["Legato"]
        for engine in rates:
            if engine != "Legato":
                kind = "llama" if engine.startswith("llama") else "openvino"
                pair = {name: rates[name] for name in ("Legato", engine)}
                ratio = statistics.median(ours) / statistics.median(rates[engine])
                result.add(f"{key}-{phase}-{kind}", ratio, pair, "tok/s")
        share = statistics.median(rate * amount / limit[phase] for rate, limit in zip(ours, limits, strict=True))
        measured = sorted(limit[phase] / 1e9 for limit in limits)
        note = f"{notes[phase]} {measured[0]:.1f} to {measured[-1]:.1f} {'GB/s' if phase == 'decode' else 'GOP/s'}"
        result.add(f"{key}-{phase}-ceiling", share, {"Legato": ours}, "tok/s", [note])


def work_of(file: EngineFile) -> tuple[Rates, dict[str, str]]:
    """Bytes or operations of a token, which the limits are over. The head runs for one row of a prompt only."""
    linear = [record for record in file.tensors if record.kind == 0]
    size = float(sum(record.size for record in linear))
    operations = sorted(2 * record.n * record.k for record in linear)
    per_token = sum(operations[:-1]) + operations[-1] / PREFILL
    notes = {
        "decode": f"{size / 1e9:.2f} GB of linear weights, read bandwidth",
        "prefill": f"{per_token / 1e9:.2f} GOP per token, int8 peak",
    }
    return {"decode": size, "prefill": per_token}, notes


if __name__ == "__main__":
    main()
