"""Legato beside OpenVINO GenAI on the standard workloads: in turn, in one sitting, ratio of medians.

python benchmarks/beside_openvino.py PEER_PYTHON IR_DIR [--format int8] [--rounds 3] [--workloads single uniform mixed]

PEER_PYTHON is the interpreter of an environment with openvino-genai; IR_DIR a model exported with
`optimum-cli export openvino --task text-generation-with-past --weight-format int8`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from legato.bench.throughput import spread
from legato.bench.workloads import WORKLOADS, standard

PEER = Path(__file__).parent / "peers" / "run_openvino.py"


def run_json(command: list[str]) -> dict:
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer_python")
    parser.add_argument("ir_dir")
    parser.add_argument("--format", default="int8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS))
    args = parser.parse_args()
    work = standard()
    tokens = {name: sum(len(job.prompt) + job.max_tokens for job in jobs) for name, jobs in work.items()}
    legato: dict[str, list[float]] = {name: [] for name in args.workloads}
    peer: dict[str, list[float]] = {name: [] for name in args.workloads}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(
            {k: [{"prompt": job.prompt, "max_tokens": job.max_tokens} for job in v] for k, v in work.items()}, file
        )
        file.flush()
        for _ in range(args.rounds):
            for name in args.workloads:
                ours = [sys.executable, "-m", "legato", "bench", "throughput", "--format", args.format, "--rounds", "1"]
                legato[name] += run_json([*ours, "--workloads", name, "--json", "-"])["results"][0]["seconds"]
                peer[name].append(run_json([args.peer_python, str(PEER), file.name, args.ir_dir, name])["seconds"])
    print(f"{'workload':10}{'legato tok/s':>14}{'spread':>8}{'openvino tok/s':>16}{'spread':>8}{'ratio':>8}")
    for name in args.workloads:
        a, b = statistics.median(legato[name]), statistics.median(peer[name])
        spreads = spread(legato[name]), spread(peer[name])
        rates = f"{tokens[name] / a:14.1f}{spreads[0]:8.1%}{tokens[name] / b:16.1f}{spreads[1]:8.1%}"
        print(f"{name:10}{rates}{b / a:8.2f}")


if __name__ == "__main__":
    main()
