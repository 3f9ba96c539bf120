"""KL and top-token agreement of every format of the default model against its fp32 path, on all 16 windows.

usage: check_quality.py MODEL.gguf      Exits with status 1 where a bar does not hold. Takes minutes.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bars import BARS, windows

from legato.weights.gguf_source import GgufSource
from support.executors import native
from support.quality import compare


def announced(texts: list[list[int]]) -> Iterator[list[int]]:
    for i, text in enumerate(texts, 1):
        print(f"window {i} of {len(texts)}", file=sys.stderr, flush=True)
        yield text


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
        result = compare(reference, others, announced(windows()))
    good = True
    for format, quality in result.items():
        bar = BARS.get(format)
        verdict = "" if bar is None else "ok" if bar.holds(quality) else "FAILED"
        good &= verdict != "FAILED"
        figures = f"perplexity {quality.perplexity:7.3f}  KL {quality.kl:.5f}  same top {quality.same_top:.4f}"
        print(f"{format:10} {figures}  {verdict}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
