"""KL and top-token agreement of every format of the default model against its fp32 path, on all 16 windows.

usage: check_quality.py MODEL.gguf      Exits with status 1 where a bar does not hold. Takes minutes.
"""

import sys
import tempfile
from pathlib import Path

from bars import BARS, windows

from legato.bench.quality import measure
from legato.weights.gguf_source import GgufSource
from support.executors import native


def main() -> int:
    source = GgufSource(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:
        reference = native(source, Path(folder), format="fp32", rows=256, blocks=80, threads=None)
        others = {
            format: native(
                source, Path(folder), format=format, kv_cache_dtype="bf16", rows=256, blocks=80, threads=None
            )
            for format in BARS
        }
        texts = windows()
        result = measure(reference, others, texts, lambda done: say(f"window {done} of {len(texts)}"))
    for format, quality in result.items():
        perplexity = f"perplexity {quality.perplexity:7.3f} (fp32 {quality.reference_perplexity:7.3f})"
        verdict = "ok" if BARS[format].holds(quality) else "FAILED"
        print(f"{format:6} {perplexity}  KL {quality.kl:.5f}  same top {quality.same_top:.4f}  {verdict}")
    return 0 if all(BARS[format].holds(quality) for format, quality in result.items()) else 1


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
