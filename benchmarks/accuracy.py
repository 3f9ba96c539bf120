"""KL to fp32 of the formats of the default model, teacher-forced on committed windows of documentation strings.

python benchmarks/accuracy.py [--windows 16] [--kv-cache-dtypes bf16 int8]

The rows of the table have the first KV dtype; the others are in the notes.
"""

import sys
from dataclasses import replace
from pathlib import Path

from common import Result, arguments, say

from legato.bench.quality import CHUNK, Quality, measure
from legato.core.config import CacheConfig, ModelConfig, SchedulerConfig
from legato.engine.start import engine_file
from legato.executor.native import NativeExecutor

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "parity"))
from bars import windows  # the text that the bars were set on

FORMATS = ("bf16", "int8", "auto")
LENGTH = 1024


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--windows", type=int, default=16, help="of 1,024 tokens each (default: all 16)")
    parser.add_argument("--kv-cache-dtypes", nargs="+", default=["bf16"], help="of the formats; default: bf16")
    args = parser.parse_args()
    texts = windows()[: args.windows]
    reference = opened("fp32", "fp32")
    tested = {f"{f}, {kv} KV": opened(f, kv) for f in FORMATS for kv in args.kv_cache_dtypes}
    found = measure(reference, tested, texts, lambda done: say(f"window {done} of {len(texts)}"))
    result = Result("accuracy", args)
    for format in FORMATS:
        first, *others = args.kv_cache_dtypes
        quality = found[f"{format}, {first} KV"]
        notes = [f"{first} KV: {described(quality)}, fp32 {quality.reference_perplexity:.3f}"]
        notes += [f"{kv} KV: {described(found[f'{format}, {kv} KV'])}" for kv in others]
        result.add(f"kl-{format}", quality.kl, {f"{first} KV": [quality.kl]}, "nats", notes)
    result.save()


def described(quality: Quality) -> str:
    return f"KL {quality.kl:.5f}, same top token {quality.same_top:.1%}, perplexity {quality.perplexity:.3f}"


def opened(format: str, kv_dtype: str) -> NativeExecutor:
    """An executor with room for one window."""
    file = engine_file(replace(ModelConfig(), format=format))
    cache = CacheConfig(num_blocks=-(-LENGTH // 16), kv_cache_dtype=kv_dtype)
    scheduler = SchedulerConfig(max_num_batched_tokens=CHUNK, max_num_seqs=CHUNK)
    return NativeExecutor.open(file, cache=cache, scheduler=scheduler)


if __name__ == "__main__":
    main()
