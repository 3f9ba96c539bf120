"""Continuous against static batching on answers with a heavy tail, and the KV memory that paging saves. int8.

python benchmarks/continuous.py [--rounds 3]

By `legato bench compare policies`: 1,024 requests, 32 at once. A short run understates the gain: once none waits,
places stay empty under any policy, until the last long answer ends (a good part of the 700 steps of 128 requests).
"""

import statistics

from common import Result, arguments, legato, run_json


def main() -> None:
    parser = arguments(__doc__)
    args = parser.parse_args()
    command = legato(
        "bench",
        "compare",
        "policies",
        "--format",
        "int8",
        "--num-requests",
        1024,
        "--rounds",
        args.rounds,
        "--json",
        "-",
    )
    results = run_json(command)["results"]
    continuous, skips, pads = results["policies"]
    result = Result("continuous", args)
    for key, static in (("static-padded", pads), ("static-skips", skips)):
        rates = {run["policy"]: [run["tokens_out"] / s for s in run["seconds"]] for run in (continuous, static)}
        notes = [f"{run['policy']}: {run['steps']} steps, {run['rows']} rows" for run in (continuous, static)]
        ratio = statistics.median(static["seconds"]) / statistics.median(continuous["seconds"])
        result.add(key, ratio, rates, "output tok/s", notes)
    waste = {layout["layout"]: [100 * layout["waste"]] for layout in results["kv_memory"]}
    notes = [f"{layout['layout']}: {layout['streams']} streams fit" for layout in results["kv_memory"]]
    paged = next(layout["waste"] for layout in results["kv_memory"] if layout["layout"].startswith("paged"))
    result.add("kv-waste", paged, waste, "% of the reserved slots", notes)
    result.save()


if __name__ == "__main__":
    main()
