"""64 streams of `mixed` over HTTP beside the same work offline, int8, in turn: what the server costs.

python benchmarks/http_streams.py [--rounds 3]

The client is `legato bench serve` on the same cores; its CPU seconds are in the result.
"""

import statistics

from common import Result, arguments, free_port, legato, run_json, say, serving

STREAMS = 64


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--workload", default="mixed")
    args = parser.parse_args()
    port = free_port()
    offline: list[float] = []
    online: list[float] = []
    client: list[float] = []
    flags = ("--format", "int8", "--no-enable-prefix-caching")
    for index in range(args.rounds):
        command = legato("bench", "throughput", *flags, "--rounds", 1, "--workloads", args.workload, "--json", "-")
        offline.append(run_json(command)["results"][0]["total_per_s"])
        say(f"round {index + 1}, offline: {offline[-1]:.0f} total tok/s")
        with serving(legato("serve", *flags, "--port", port), f"http://127.0.0.1:{port}/ready"):
            command = legato(
                "bench", "serve", "--port", port, "--dataset-name", args.workload, "--seed", 0, "--ignore-eos",
                "--max-concurrency", STREAMS, "--num-warmups", 1, "--fail-on-errors", "--json", "-",
            )  # fmt: skip
            figures = run_json(command)["results"]
        online.append(figures["total_token_throughput"])
        client.append(figures["client_cpu_s"])
        say(f"round {index + 1}, HTTP: {online[-1]:.0f} total tok/s, client {client[-1]:.2f} s of CPU time")
    result = Result("http_streams", args)
    notes = [f"the client took {statistics.median(client):.2f} s of CPU time on the same cores (median)"]
    rates = {"Legato over HTTP": online, "Legato offline": offline}
    result.add("http-64", statistics.median(online) / statistics.median(offline), rates, "total tok/s", notes)
    result.save()


if __name__ == "__main__":
    main()
