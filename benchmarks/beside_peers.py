"""Legato beside its peers on the standard workloads: in turn, in one sitting, ratio of medians to the best peer.

python benchmarks/beside_peers.py --peers DIR --format int8 [--rounds 3] [--workloads single uniform mixed]
                                  [--without vllm] [--kv-cache-dtype int8]

DIR is what peers/install.sh filled; peers that are not there are left out, and the result says so. A run of some
workloads has a file of its own, whose rows stand in place of those of the run of all.
"""

import statistics
from contextlib import ExitStack

from common import Result, arguments, peers_dir, say
from engines import Run, awake, legato_run, peers_for, threads, turns, write_work

from legato.bench.machine import Limits, default_level
from legato.bench.workloads import DEFAULT, Job, standard
from legato.build.engine_file import EngineFile
from legato.core.config import ModelConfig
from legato.engine.start import engine_file


def main() -> None:
    parser = arguments(__doc__)
    peers_dir(parser)
    parser.add_argument("--format", default="int8", choices=("int8", "bf16", "auto"))
    parser.add_argument("--workloads", nargs="+", default=list(DEFAULT))
    parser.add_argument("--without", nargs="+", default=[], help="peers to leave out: openvino, llama, vllm")
    parser.add_argument("--kv-cache-dtype", default="auto", help="of Legato (default: auto)")
    args = parser.parse_args()
    work = {name: standard()[name] for name in args.workloads}
    candidates = peers_for(args.format, args.peers)
    chosen = [peer for peer in candidates if peer.installed and peer.kind not in args.without]
    missing = ", ".join(peer.name for peer in candidates if peer not in chosen)
    notes = [f"Legato's KV cache: {kv_dtype(args.kv_cache_dtype)}", *([f"not measured: {missing}"] if missing else [])]
    file = engine_file(ModelConfig(format=args.format))
    bandwidths: list[float] = []
    with ExitStack() as stack:
        legato = legato_run(args.format, ("--kv-cache-dtype", args.kv_cache_dtype))
        runs = {"Legato": beside_bandwidth(legato, bandwidths)}
        runs |= awake(stack, chosen, write_work(stack, work))
        seconds = turns(runs, args.workloads, args.rounds, say)
    some = [] if args.workloads == list(DEFAULT) else args.workloads
    result = Result("_".join(["beside", args.format, *some]), args)
    for name, jobs in work.items():
        add(result, f"{name}-{args.format}", jobs, {engine: of[name] for engine, of in seconds.items()}, notes)
    if "single" in work:
        times = list(zip(seconds["Legato"]["single"], bandwidths, strict=True))
        add_share(result, f"single-{args.format}-share", file, times, work["single"])
    result.save()


def kv_dtype(name: str) -> str:
    return "bf16" if name == "auto" else name


def add(result: Result, key: str, jobs: list[Job], seconds: dict[str, list[float]], notes: list[str]) -> None:
    """Rates of all engines, and the ratio of Legato's median to that of the fastest other one."""
    single = len(jobs) == 1
    tokens = sum(job.max_tokens if single else len(job.prompt) + job.max_tokens for job in jobs)
    rates = {engine: [tokens / value for value in values] for engine, values in seconds.items()}
    medians = {engine: statistics.median(values) for engine, values in rates.items() if engine != "Legato"}
    if medians:
        ratio = statistics.median(rates["Legato"]) / max(medians.values())
        result.add(key, ratio, rates, "output tok/s" if single else "total tok/s", notes)


def beside_bandwidth(legato: Run, bandwidths: list[float]) -> Run:
    """Legato's run, and after each one of `single` the bytes per second that memory gives at that moment."""

    def run(name: str) -> float:
        seconds = legato(name)
        if name == "single":
            bandwidths.append(Limits(default_level(), threads()).bandwidth(0.5))
        return seconds

    return run


def add_share(result: Result, key: str, file: EngineFile, times: list[tuple[float, float]], jobs: list[Job]) -> None:
    """Bytes of the linear weights that the decode steps read, over the whole time (the prefill's too)."""
    step = sum(record.size for record in file.tensors if record.kind == 0)
    rates = [step * jobs[0].max_tokens / seconds for seconds, _ in times]
    share = statistics.median(rate / read for rate, (_, read) in zip(rates, times, strict=True))
    measured = sorted(read / 1e9 for _, read in times)
    note = (
        f"{step / 1e6:.1f} MB of linear weights in a step; read bandwidth {measured[0]:.1f} to {measured[-1]:.1f} GB/s"
    )
    result.add(key, share, {"Legato": [rate / 1e9 for rate in rates]}, "GB/s of weights", [note])


if __name__ == "__main__":
    main()
