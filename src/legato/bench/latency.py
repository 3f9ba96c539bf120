"""Latency of one static batch, by the definition of `vllm bench latency`: all prompts at once, until all have ended."""

import random
import time
from collections.abc import Callable

from legato.bench.workloads import FIRST_ID, last_id_of
from legato.core.types import SamplingParams
from legato.engine.llm import LLM

__all__ = ["PERCENTILES", "measure"]

PERCENTILES = (10, 25, 50, 75, 90, 99)


def measure(
    llm: LLM,
    *,
    batch_size: int,
    input_len: int,
    output_len: int,
    warmups: int,
    iterations: int,
    seed: int,
    progress: Callable[[int, float], None],
) -> list[float]:
    """Seconds of each iteration after the warm-up ones. Every iteration has prompts of its own."""
    rng = random.Random(seed)
    ids = range(FIRST_ID, last_id_of(llm.info.vocab_size))
    params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
    seconds = []
    for index in range(-warmups, iterations):
        prompts = [{"prompt_token_ids": rng.choices(ids, k=input_len)} for _ in range(batch_size)]
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        elapsed = time.perf_counter() - start
        if index >= 0:
            seconds.append(elapsed)
            progress(index, elapsed)
    return seconds
