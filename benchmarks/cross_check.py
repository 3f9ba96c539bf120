"""`legato bench serve` and `vllm bench serve` as clients of one server: TTFT, TPOT and ITL must agree. int8.

python benchmarks/cross_check.py --peers DIR [--rounds 3]

48 prompts of about 100 tokens, 64 tokens out, arriving evenly, three in a second, so that both clients give the server
the same load. The clients take turns; the figure is vLLM's median over Legato's.
"""

import json
import statistics
import tempfile
from pathlib import Path

from common import Result, arguments, free_port, legato, peers_dir, run, run_json, say, serving

REQUESTS, RATE, WORDS, TOKENS_OUT = 48, 3, 24, 64
EVEN = 1_000_000  # burstiness: gaps between arrivals that hardly differ
VLLM = Path(__file__).parent / "peers" / "vllm_cli.py"
LATENCIES = ("ttft", "tpot", "itl")


def main() -> None:
    parser = arguments(__doc__)
    peers_dir(parser)
    args = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {"Legato": [], "vLLM": []}
    port = free_port()
    serve = legato("serve", "--format", "int8", "--served-model-name", "model", "--no-enable-prefix-caching")
    with tempfile.TemporaryDirectory() as folder, serving([*serve, "--port", port], f"http://127.0.0.1:{port}/ready"):
        dataset = Path(folder) / "prompts.jsonl"
        dataset.write_text(
            "".join(f"{json.dumps({'prompt': prompt(i), 'output_tokens': TOKENS_OUT})}\n" for i in range(REQUESTS))
        )
        for index in range(args.rounds):
            found["Legato"].append(by_legato(port, dataset, index))
            found["vLLM"].append(by_vllm(args.peers, port, dataset, index))
            say(f"round {index + 1}: {found['Legato'][-1]} {found['vLLM'][-1]}")
    result = Result("cross_check", args)
    for name in LATENCIES:
        rounds = {client: [figures[name] for figures in of] for client, of in found.items()}
        ratio = statistics.median(rounds["vLLM"]) / statistics.median(rounds["Legato"])
        result.add(f"cross-{name}", ratio, rounds, "ms, the median of a round")
    result.save()


def prompt(index: int) -> str:
    return " ".join(f"word{(index * 7919 + i * 104_729) % 997}" for i in range(WORDS))


def by_legato(port: int, dataset: Path, seed: int) -> dict[str, float]:
    command = legato("bench", "serve", "model", "--port", port, *load(dataset, seed), "--fail-on-errors", "--json", "-")
    latencies: dict[str, dict[str, float]] = run_json(command)["results"]["latency_ms"]
    return {name: latencies[name]["p50"] for name in LATENCIES}


def by_vllm(peers: Path, port: int, dataset: Path, seed: int) -> dict[str, float]:
    command = [peers / "vllm" / "bin" / "python", VLLM, "bench", "serve", "--model", "model"]
    command += ["--base-url", f"http://127.0.0.1:{port}", "--tokenizer", peers / "hf", "--disable-tqdm"]
    command += ["--skip-chat-template", "--custom-output-len", TOKENS_OUT, "--save-result", "--result-filename"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        run([*command, file, *load(dataset, seed)], {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"})
        figures: dict[str, float] = json.loads(file.read_text())
    if figures["completed"] != REQUESTS:
        raise SystemExit(f"vLLM's client completed {figures['completed']} of {REQUESTS} requests")
    return {name: figures[f"median_{name}_ms"] for name in LATENCIES}


def load(dataset: Path, seed: int) -> list[object]:
    """What both clients are told, in the same words."""
    data = ("--backend", "openai", "--dataset-name", "custom", "--dataset-path", dataset, "--seed", seed)
    rate = ("--num-prompts", REQUESTS, "--request-rate", RATE, "--burstiness", EVEN, "--num-warmups", 1)
    return [*data, *rate, "--ignore-eos"]


if __name__ == "__main__":
    main()
