"""Restoring a prompt from the file of --kv-offloading-size against computing it again, for prompts of three lengths.

python benchmarks/kv_disk.py [--rounds 5] [--lengths 512 1024 4096] [--kv-dir DIR]

In one process, int8 weights. Per round and length: a prompt of random tokens is computed, another one evicts all of it
from a pool that holds just the longest, and it is asked for again. Both are timed from submission to the
first token. The answer must be the same, and all whole blocks must have come from the file. The file is written and
read through the page cache, as a server's is: on a machine with less free memory than the file, the disk counts too.
"""

import random
import statistics
import tempfile
import time

from common import Result, arguments, say

from legato.core.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from legato.core.types import SamplingParams
from legato.engine.assemble import Engine
from legato.engine.outputs import Output
from legato.engine.start import start

BLOCK = 16
LENGTHS = [512, 1024, 4096]  # tokens of a prompt


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(rounds=5)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, choices=LENGTHS)
    parser.add_argument("--kv-dir", help="folder of the file, on the disk to be measured (default: a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.kv_dir) as folder:
        engine = start(
            EngineConfig(
                model=ModelConfig(format="int8"),
                cache=CacheConfig(
                    num_blocks=-(-max(args.lengths) // BLOCK), kv_offloading_size=4.0, kv_offloading_dir=folder
                ),
                scheduler=SchedulerConfig(max_num_seqs=1),
            )
        )
        try:
            measured = {length: measure(engine, length, max(args.lengths), args.rounds) for length in args.lengths}
        finally:
            engine.close()
    result = Result("kv_disk", args)
    for length, (computed, restored) in measured.items():
        times = {"computed": [1e3 * s for s in computed], "restored": [1e3 * s for s in restored]}
        ratio = statistics.median(computed) / statistics.median(restored)
        result.add(f"restore-{length}", ratio, times, "ms to the first token")
    result.save()


def measure(engine: Engine, length: int, longest: int, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds to the first token, computed and restored."""
    draw = random.Random(length)
    computed, restored = [], []
    for _ in range(rounds):
        prompt = tokens(draw, engine, length)
        cold_s, cold = ask(engine, prompt)
        ask(engine, tokens(draw, engine, longest))
        warm_s, warm = ask(engine, prompt)
        whole = (length - 1) // BLOCK * BLOCK
        if (cold.num_cached, warm.num_restored) != (0, whole) or cold.tokens != warm.tokens:
            raise SystemExit(f"{warm.num_restored} of {whole} tokens were restored, or the answer differs")
        computed.append(cold_s)
        restored.append(warm_s)
        say(f"{length} tokens: computed {1e3 * cold_s:.1f} ms, restored {1e3 * warm_s:.1f} ms")
    return computed, restored


def tokens(draw: random.Random, engine: Engine, length: int) -> list[int]:
    return [draw.randrange(engine.info.vocab_size) for _ in range(length)]


def ask(engine: Engine, prompt: list[int]) -> tuple[float, Output]:
    outputs: list[Output] = []
    engine.loop.publish = outputs.extend
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    request = engine.inputs.request(prompt, params)
    began = time.perf_counter()
    engine.loop.submit([request])
    while engine.loop.busy:
        engine.loop.step()
    return time.perf_counter() - began, outputs[-1]


if __name__ == "__main__":
    main()
