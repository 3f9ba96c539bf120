"""The standard workloads, as token ids so that tokenizers play no part. Run greedy with ignore_eos.

single   one request, 128 tokens in, 128 out: latency of one stream
uniform  32 requests, 512 in, 128 out: throughput without raggedness
mixed    64 requests, log-normal lengths in and out: chat and agent traffic
agent    128 requests, answers with a heavy tail (mean about 100, longest 600): one long answer per batch or so
"""

import random
from dataclasses import dataclass

from legato.core.errors import ConfigError

__all__ = ["DEFAULT", "FIRST_ID", "LAST_ID", "WARM_UP", "WORKLOADS", "Job", "agent", "last_id_of", "standard"]

DEFAULT = ("single", "uniform", "mixed")
WORKLOADS = (*DEFAULT, "agent")
FIRST_ID, LAST_ID = 100, 49_000  # clear of control tokens, inside the default model's vocabulary


@dataclass(frozen=True, slots=True)
class Job:
    """One request: prompt token ids, and how many tokens to generate."""

    prompt: tuple[int, ...]
    max_tokens: int


WARM_UP = Job((FIRST_ID,) * 32, 4)


def last_id_of(vocab_size: int) -> int:
    """The end of the ids to draw for a model. ConfigError where it has too few tokens to draw from."""
    if vocab_size <= FIRST_ID:
        raise ConfigError(f"token ids are drawn from {FIRST_ID} upwards, and the model has only {vocab_size}")
    return min(LAST_ID, vocab_size)


def standard(seed: int = 0, last_id: int = LAST_ID) -> dict[str, list[Job]]:
    """The workloads, drawn from one generator in a fixed order: equal seeds give equal workloads.

    Ids are from FIRST_ID to below `last_id`.
    """
    rng = random.Random(seed)

    def job(num_in: int, num_out: int) -> Job:
        return Job(tuple(rng.randrange(FIRST_ID, last_id) for _ in range(num_in)), num_out)

    def lengths() -> tuple[int, int]:
        num_in = min(1024, max(16, rng.lognormvariate(5.0, 0.9)))
        num_out = min(512, max(8, rng.lognormvariate(4.6, 0.8)))
        return int(num_in), int(num_out)

    single = [job(128, 128)]
    uniform = [job(512, 128) for _ in range(32)]
    mixed = [job(*lengths()) for _ in range(64)]
    return {"single": single, "uniform": uniform, "mixed": mixed, "agent": agent(128, seed, last_id)}


def agent(num_requests: int, seed: int = 0, last_id: int = LAST_ID) -> list[Job]:
    """The agent workload, of any length. Ids as in `standard`."""
    rng = random.Random(seed)

    def job() -> Job:
        num_out = int(min(600, max(8, rng.lognormvariate(4.05, 1.05))))
        return Job(tuple(rng.randrange(FIRST_ID, last_id) for _ in range(rng.randint(32, 128))), num_out)

    return [job() for _ in range(num_requests)]
