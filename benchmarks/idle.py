"""How long the compute threads wait for the engine at 64 sequences: what is between two steps, of the wall time. int8.

python benchmarks/idle.py [--rounds 3]

By `legato bench profile` on `mixed`. Waiting at barriers inside an op is part of the op there, so not of this figure.
"""

import statistics

from common import Result, arguments, legato, run_json


def main() -> None:
    parser = arguments(__doc__)
    args = parser.parse_args()
    command = legato("bench", "profile", "--format", "int8", "--workloads", "mixed", "--rounds", 1, "--json", "-")
    shares = [run_json(command)["results"][0]["shares"] for _ in range(args.rounds)]
    waiting = [share["between steps"] for share in shares]
    medians = {part: statistics.median(share[part] for share in shares) for part in shares[0]}
    largest = sorted(medians.items(), key=lambda item: -item[1])
    notes = ["the step's time: " + ", ".join(f"{part} {share:.1%}" for part, share in largest if share >= 0.001)]
    result = Result("idle", args)
    result.add(
        "idle", statistics.median(waiting), {"Legato": [100 * share for share in waiting]}, "% between steps", notes
    )
    result.save()


if __name__ == "__main__":
    main()
