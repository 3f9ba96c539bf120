"""What observing costs: throughput with all of it on, over throughput with none of it. int8, `mixed`, 64 streams.

python benchmarks/observability.py [--rounds 5] [--workload mixed]

Over HTTP two servers take the same load in turn. One counts, writes JSON logs with a line per request, sends traces to
a collector of this script, and is scraped every second; the other one only computes: its metrics are replaced by
nothing. Inside the engine (no HTTP) one loop runs the same work with its metrics and with nothing, in turn. The value
is the median of the ratios of each round.
"""

import statistics
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.request import urlopen

from common import Result, arguments, free_port, legato, run_json, say, serving

from legato.bench.throughput import run_jobs
from legato.bench.workloads import WARM_UP, standard
from legato.core.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, ServerConfig
from legato.engine.assemble import Engine
from legato.engine.llm import LLM
from legato.engine.start import start
from legato.server.keys import ApiKeys
from legato.server.lifecycle import bind, serve

STREAMS = 64
SCRAPE_S = 1.0
CONFIG = EngineConfig(
    model=ModelConfig(format="int8"), cache=CacheConfig(), scheduler=SchedulerConfig(enable_prefix_caching=False)
)


class Nothing:
    """In the place of an engine's `Metrics`: counts nothing."""

    requests = SimpleNamespace(on_end=None)
    phases = SimpleNamespace(timed=lambda phase, call, *args: call(*args))

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: None


def serve_unobserved(port: int) -> int:
    """A server without metrics and logs, until it is told to end."""
    engine = start(CONFIG)
    engine.loop.metrics = Nothing()  # type: ignore[assignment]
    config = ServerConfig(port=port, log_level="error")
    return serve(engine, config, ApiKeys.load(config), bind(config), lambda: None)


@contextmanager
def collector() -> Iterator[str]:
    """Takes spans and forgets them; gives its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()


@contextmanager
def scraped(port: int) -> Iterator[None]:
    """/metrics is read every SCRAPE_S seconds, as Prometheus does, only more often."""
    done = threading.Event()

    def scrape() -> None:
        while not done.wait(SCRAPE_S):
            with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                answer.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def load(port: int, workload: str) -> float:
    """Total tokens per second of the workload."""
    command = legato(
        "bench", "serve", "--port", port, "--dataset-name", workload, "--seed", 0, "--ignore-eos",
        "--max-concurrency", STREAMS, "--num-warmups", 1, "--fail-on-errors", "--json", "-",
    )  # fmt: skip
    rate: float = run_json(command)["results"]["total_token_throughput"]
    return rate


def over_http(workload: str, rounds: int) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {"observed": [], "unobserved": []}
    ports = {name: free_port() for name in rates}
    with ExitStack() as stack:
        traces = stack.enter_context(collector())
        commands = {
            "observed": legato(
                "serve", "--format", "int8", "--no-enable-prefix-caching", "--port", ports["observed"],
                "--log-format", "json", "--log-requests", "--otlp-traces-endpoint", traces,
            ),
            "unobserved": [sys.executable, __file__, "--serve", str(ports["unobserved"])],
        }  # fmt: skip
        for name, command in commands.items():
            stack.enter_context(serving(command, f"http://127.0.0.1:{ports[name]}/ready"))
        for name in rates:
            load(ports[name], "single")
        for index in range(rounds):
            for name in rates if index % 2 == 0 else reversed(rates):
                with ExitStack() as round_stack:
                    if name == "observed":
                        round_stack.enter_context(scraped(ports[name]))
                    rates[name].append(load(ports[name], workload))
                say(f"round {index + 1}, {name}: {rates[name][-1]:.0f} total tok/s")
    return rates


def inside(workload: str, rounds: int) -> dict[str, list[float]]:
    engine: Engine = start(CONFIG)
    jobs = standard()[workload]
    tokens = sum(len(job.prompt) + job.max_tokens for job in jobs)
    metrics = {"counting": engine.metrics, "not counting": Nothing()}
    rates: dict[str, list[float]] = {name: [] for name in metrics}
    with LLM.over(engine) as llm:
        run_jobs(llm, [WARM_UP])
        for index in range(rounds):
            for name in metrics if index % 2 == 0 else reversed(metrics):
                engine.loop.metrics = metrics[name]  # type: ignore[assignment]
                rates[name].append(tokens / run_jobs(llm, jobs)[0])
                say(f"round {index + 1}, {name}: {rates[name][-1]:.0f} total tok/s")
    return rates


def ratio(rates: dict[str, list[float]]) -> float:
    with_it, without = rates.values()
    return statistics.median(a / b for a, b in zip(with_it, without, strict=True))


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(rounds=5)
    parser.add_argument("--workload", default="mixed")
    parser.add_argument("--serve", type=int, metavar="PORT", help="only serve, unobserved")
    args = parser.parse_args()
    if args.serve is not None:
        raise SystemExit(serve_unobserved(args.serve))
    result = Result("observability", args)
    for key, measure in (("observed-http", over_http), ("observed-engine", inside)):
        rates = measure(args.workload, args.rounds)
        result.add(key, ratio(rates), rates, "total tok/s")
    result.save()


if __name__ == "__main__":
    main()
