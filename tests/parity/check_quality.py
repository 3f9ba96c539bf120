"""KL and top-token agreement of every format of the default model against its fp32 path.

usage: check_quality.py MODEL.gguf [--kv-cache-dtypes NAME ...] [--formats NAME ...] [--windows N] [--dither]
--dither: of the model with its weights moved off their 4-bit grid, where only int4 (codes made anew) has no bar.
Exits with status 1 where a bar does not hold; the KV cache counts. Takes minutes, with a bf16 cache and all 16 windows.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from bars import BARS, windows
from dithered import Dithered

from legato.bench.quality import measure
from legato.weights.gguf_source import GgufSource
from support.executors import native


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--kv-cache-dtypes", nargs="+", default=["bf16"])
    parser.add_argument("--formats", nargs="+", choices=[*BARS, "int4"], default=list(BARS))
    parser.add_argument("--windows", type=int)
    parser.add_argument("--dither", action="store_true")
    args = parser.parse_args()
    source = Dithered(GgufSource(args.model)) if args.dither else GgufSource(args.model)
    texts = windows()[: args.windows]
    sizes = {"rows": 256, "blocks": 80, "threads": None}
    with tempfile.TemporaryDirectory() as folder:
        reference = native(source, Path(folder), format="fp32", **sizes)
        others = {
            f"{format} {kv}": native(source, Path(folder), format=format, kv_cache_dtype=kv, **sizes)
            for format in args.formats
            for kv in args.kv_cache_dtypes
        }
        result = measure(reference, others, texts, lambda done: say(f"window {done} of {len(texts)}"))
    bars = {name: BARS.get(name.split()[0]) for name in result}
    held = {name: bar is None or bar.holds(result[name]) for name, bar in bars.items()}
    print("format KV")
    for name, quality in result.items():
        perplexity = f"perplexity {quality.perplexity:7.3f} (fp32 {quality.reference_perplexity:7.3f})"
        verdict = "no bar" if bars[name] is None else "ok" if held[name] else "FAILED"
        print(f"{name:11} {perplexity}  KL {quality.kl:.5f}  same top {quality.same_top:.4f}  {verdict}")
    return 0 if all(held.values()) else 1


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
