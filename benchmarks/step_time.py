"""Inter-token latency of 32 streams before and while a prompt of 6,000 tokens is computed among them.

python benchmarks/step_time.py [MODEL] [--format int8] [--max-step-ms 100] [--streams 32] [--prompt 6000] [--rounds 3]

The streams decode for a while; then the prompt arrives, and the gaps between the outputs of each stream are noted until
the prompt has its first token. The same once more with --max-step-ms 0, for comparison. No prefix cache.
"""

import random
import statistics
import time
from collections.abc import Sequence

from common import Result, arguments, say

from legato.bench.workloads import FIRST_ID, last_id_of
from legato.core.config import EngineConfig, build
from legato.core.types import Request, SamplingParams
from legato.engine.assemble import Engine
from legato.engine.outputs import Output
from legato.engine.start import start

STREAM_PROMPT = 64
STEPS_BEFORE = 100


class Gaps:
    """Milliseconds between two outputs of a stream, all streams together; `long_done`: the prompt has its token."""

    def __init__(self) -> None:
        self.ms: list[float] = []
        self.long_done = False
        self._last: dict[str, float] = {}

    def __call__(self, outputs: list[Output]) -> None:
        now = time.perf_counter()
        for output in outputs:
            if output.request_id == "long":
                self.long_done = True
            elif output.request_id in self._last:
                self.ms.append(1000 * (now - self._last[output.request_id]))
            self._last[output.request_id] = now


def measure(engine: Engine, streams: int, length: int, seed: int) -> tuple[list[float], list[float], float]:
    """Gaps before the prompt and while it is computed, ms; and how long it took to its first token, s."""
    rng = random.Random(seed)
    ids = range(FIRST_ID, last_id_of(engine.info.vocab_size))
    loop, gaps = engine.loop, Gaps()
    loop.publish = gaps

    def submit(name: str, tokens: int, max_tokens: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, seed=0)
        loop.submit([Request(name, rng.choices(ids, k=tokens), params, time.monotonic())])

    room = engine.inputs.max_model_len - STREAM_PROMPT
    for index in range(streams):
        submit(f"stream {index}", STREAM_PROMPT, room)
    while len(gaps.ms) < streams * STEPS_BEFORE:
        loop.step()
    before, gaps.ms = gaps.ms[-streams * STEPS_BEFORE // 2 :], []
    arrived = time.perf_counter()
    submit("long", length, 1)
    while not gaps.long_done:
        loop.step()
    seconds, during = time.perf_counter() - arrived, gaps.ms
    for index in range(streams):
        loop.abort(f"stream {index}")
    while loop.busy:
        loop.step()
    return before, during, seconds


def described(ms: Sequence[float]) -> str:
    cuts = statistics.quantiles(ms, n=100)
    return f"median {statistics.median(ms):.1f}, p99 {cuts[98]:.1f}, longest {max(ms):.1f} ms"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--format", default="int8")
    parser.add_argument("--max-step-ms", type=float, default=100.0)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=6000)
    args = parser.parse_args()
    worst: dict[str, list[float]] = {"bounded": [], "unbounded": []}
    notes = []
    for name, limit in (("bounded", args.max_step_ms), ("unbounded", 0.0)):
        values = {"model": args.model, "format": args.format, "max_step_ms": limit, "enable_prefix_caching": False}
        engine = start(build(EngineConfig, {**values, "max_num_seqs": args.streams + 1}))
        for index in range(args.rounds):
            before, during, seconds = measure(engine, args.streams, args.prompt, index)
            worst[name].append(max(during))
            notes.append(
                f"{name}, round {index + 1}: before {described(before)}; during {described(during)}; "
                f"first token of the prompt after {seconds:.1f} s"
            )
            say(notes[-1])
        engine.close()
    result = Result("step_time", args)
    result.add("step-time", max(worst["bounded"]) / args.max_step_ms, worst, "longest gap during the prompt, ms", notes)
    result.save()


if __name__ == "__main__":
    main()
