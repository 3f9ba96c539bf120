"""TTFT and ITL over HTTP with Poisson arrivals, beside the best peer server on the same requests and times. int8.

python benchmarks/http_latency.py --peers DIR [--rounds 3] [--without llama]

First every server's saturation: 64 streams of `mixed` as fast as they go. Then, in turn, Legato and the peer with the
highest saturation, at 70 % of the peer's, and at 70 % of Legato's. Each round draws its own requests and times; both
servers get the same. Percentiles are over all rounds' requests together. OpenVINO's own server is not on PyPI:
peers/serve_openvino.py puts its continuous batching behind HTTP.
"""

import statistics
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import Result, arguments, free_port, legato, peers_dir, run_json, say, serving
from engines import LLAMA_FLAGS, threads

from legato.bench.figures import percentile

STREAMS = 64
SHARE = 0.7
DRIVER = Path(__file__).parent / "peers" / "serve_openvino.py"


@dataclass(frozen=True)
class Server:
    """command: up to the port. extra: fields that its requests need."""

    name: str
    command: tuple[str, ...]
    ready: str
    extra: str = "{}"

    def load(self, rate: float | None, seed: int, prompts: int | None) -> dict[str, Any]:
        """What `legato bench serve --save-detailed` found. rate: requests per second; None: 64 streams."""
        port = free_port()
        command = legato(
            "bench", "serve", "model", "--port", port, "--dataset-name", "mixed", "--seed", seed, "--ignore-eos",
            "--num-warmups", 1, "--fail-on-errors", "--save-detailed", "--extra-body", self.extra, "--json", "-",
        )  # fmt: skip
        command += ["--max-concurrency", str(STREAMS)] if rate is None else ["--request-rate", str(rate)]
        command += [] if prompts is None else ["--num-prompts", str(prompts)]
        with serving([*self.command, str(port)], f"http://127.0.0.1:{port}{self.ready}"):
            figures: dict[str, Any] = run_json(command)["results"]
        return figures


def servers(peers: Path) -> list[Server]:
    """Legato first, then the peers that are installed."""
    serve = legato("serve", "--format", "int8", "--served-model-name", "model", "--no-enable-prefix-caching", "--port")
    found = [Server("Legato", tuple(serve), "/ready")]
    python, folder = peers / "openvino" / "bin" / "python", peers / "ov_int8"
    if python.exists() and folder.exists():
        found.append(Server("OpenVINO int8", (str(python), str(DRIVER), str(folder)), "/health"))
    program, file = peers / "llama" / "bin" / "llama-server", peers / "Q8_0.gguf"
    if program.exists() and file.exists():
        count = str(threads())
        flags = (*LLAMA_FLAGS, "-t", count, "-tb", count, "--port")
        extra = '{"cache_prompt": false}'
        found.append(Server("llama.cpp Q8_0", (str(program), "-m", str(file), *flags), "/health", extra))
    return found


def main() -> None:
    parser = arguments(__doc__)
    peers_dir(parser)
    parser.add_argument("--num-prompts", type=int, help="requests of a run (default: the 64 of `mixed`)")
    parser.add_argument("--without", nargs="+", default=[], help="peers to leave out: openvino, llama")
    args = parser.parse_args()
    ours, *peers = servers(args.peers)
    peers = [peer for peer in peers if not peer.name.lower().startswith(tuple(args.without))]
    if not peers:
        raise SystemExit("no peer server is installed")
    saturation = {}
    for server in (ours, *peers):
        saturation[server] = server.load(None, 0, args.num_prompts)["request_throughput"]
        say(f"{server.name} saturates at {saturation[server]:.2f} requests/s")
    best = max(peers, key=lambda peer: saturation[peer])
    result = Result("http_latency", args)
    notes = [f"{server.name} saturates at {rate:.2f} requests/s" for server, rate in saturation.items()]
    for suffix, reference in (("", best), ("-own", ours)):
        rate = SHARE * saturation[reference]
        runs: dict[str, list[dict[str, Any]]] = {ours.name: [], best.name: []}
        for index in range(args.rounds):
            for server in (ours, best):
                runs[server.name].append(server.load(rate, index + 1, args.num_prompts))
                say(f"round {index + 1}, {rate:.2f} requests/s, {server.name}: done")
        add(result, suffix, runs, [*notes, f"{rate:.2f} requests/s"])
        result.save()  # the second half takes minutes more


def add(result: Result, suffix: str, runs: dict[str, list[dict[str, Any]]], notes: list[str]) -> None:
    """The three latencies: per round for the spread, over all requests for the figure."""
    ours, peer = runs
    for key, name, share in (("ttft-p50", "ttft", 0.5), ("ttft-p99", "ttft", 0.99), ("itl-p99", "itl", 0.99)):
        rounds = {
            engine: [percentile(sorted(latencies(figures, name)), share) for figures in of]
            for engine, of in runs.items()
        }
        pooled = {
            engine: percentile(sorted(value for figures in of for value in latencies(figures, name)), share)
            for engine, of in runs.items()
        }
        both = ", ".join(f"{engine} {value:.1f} ms" for engine, value in pooled.items())
        result.add(key + suffix, pooled[peer] / pooled[ours], rounds, "ms", [*notes, f"over all rounds: {both}"])
    cpu = statistics.median(figures["client_cpu_s"] for figures in runs[ours])
    say(f"client: {cpu:.2f} s of CPU time")


def latencies(figures: dict[str, Any], name: str) -> list[float]:
    """Milliseconds, by the definitions of legato.bench.figures, from the times of each request."""
    found = []
    for request in figures["requests"]:
        times = request["chunks_s"]
        found += [times[0] - request["sent_s"]] if name == "ttft" else [b - a for a, b in pairwise(times)]
    return [1000 * value for value in found]


if __name__ == "__main__":
    main()
