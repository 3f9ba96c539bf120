"""What to ask a server: prompts and answer lengths, drawn or read from a file, some with times of their own.

random, single, uniform, mixed, agent   drawn; token ids, so that lengths are exact whatever the tokenizer
custom       JSONL, one {"prompt": text, "output_tokens": N} per line
sharegpt     JSON array of {"conversations": [{"value": prompt}, {"value": answer}, ...]}
timed_trace, burstgpt, recorded         traffic as times and lengths: see legato.bench.traces
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from legato.bench.traces import TRACES, field, lines, read_trace
from legato.bench.workloads import FIRST_ID, WORKLOADS, standard
from legato.core.errors import ConfigError

__all__ = ["DATASETS", "READ", "Draw", "Sample", "load", "words"]

READ = ("custom", "sharegpt", *TRACES)
DATASETS = ("random", *WORKLOADS, *READ)
_CHARS_PER_TOKEN = 4  # of English text, to guess the length of a recorded answer


@dataclass(frozen=True, slots=True)
class Sample:
    """One request: a text or token ids, tokens to generate, and when, in seconds from the start, if the trace says."""

    prompt: str | tuple[int, ...]
    max_tokens: int
    at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How prompts are drawn. Lengths of `random` lie within (1 ± range_ratio) of what is asked, as in vLLM."""

    seed: int
    num_prompts: int | None = None
    input_len: int = 1024
    output_len: int = 128
    range_ratio: float = 0.0
    prefix_len: int = 0
    last_id: int = 49_000


def load(name: str, path: Path | None, draw: Draw) -> list[Sample]:
    """The samples of a dataset, `draw.num_prompts` at most. ConfigError names the file and line that is wrong."""
    if name in READ:
        if path is None:
            raise ConfigError(f"dataset {name} needs --dataset-path")
        try:
            samples = _READERS[name](path, draw) if name in _READERS else _trace(name, path, draw)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from None
    elif name == "random":
        samples = list(_random(draw))
    else:
        samples = [Sample(job.prompt, job.max_tokens) for job in standard(draw.seed, draw.last_id)[name]]
    if not samples:
        raise ConfigError(f"dataset {name} holds no request")
    return samples[: draw.num_prompts]


def words(ids: Sequence[int]) -> str:
    """A text of one short made-up word per id, for endpoints that take no token ids."""
    return " ".join(_SYLLABLES[i % 100] + _SYLLABLES[i // 100 % 100] for i in ids)


_SYLLABLES = tuple(a + b for a in "bdfgklmnpr" for b in ("a", "e", "i", "o", "u", "an", "en", "in", "on", "un"))


def _ids(rng: random.Random, count: int, last_id: int) -> tuple[int, ...]:
    return tuple(rng.choices(range(FIRST_ID, last_id), k=count))


def _random(draw: Draw) -> Iterator[Sample]:
    rng = random.Random(draw.seed)
    prefix = _ids(rng, draw.prefix_len, draw.last_id)

    def length(mean: int) -> int:
        least, most = int(mean * (1 - draw.range_ratio)), int(mean * (1 + draw.range_ratio))
        return max(1, rng.randint(least, most))

    for _ in range(draw.num_prompts or 1000):
        yield Sample(prefix + _ids(rng, length(draw.input_len), draw.last_id), length(draw.output_len))


def _custom(path: Path, draw: Draw) -> list[Sample]:
    return [
        Sample(
            field(value, "prompt", str, line),
            field({"output_tokens": draw.output_len, **value}, "output_tokens", int, line),
        )
        for line, value in lines(path)
    ]


def _sharegpt(path: Path, draw: Draw) -> list[Sample]:
    """First two turns of each talk; answer lengths guessed from the characters. Drawn in an order of its own."""
    talks = json.loads(path.read_bytes())
    if not isinstance(talks, list):
        raise ValueError("not a JSON array")
    samples = []
    for index, talk in enumerate(talks, 1):
        try:
            turns = [str(turn["value"]) for turn in talk["conversations"][:2]]
        except (KeyError, TypeError):
            raise ValueError(f"entry {index}: not a talk with conversations") from None
        if len(turns) < 2:
            continue
        prompt, answer = turns
        tokens_in, tokens_out = len(prompt) // _CHARS_PER_TOKEN, len(answer) // _CHARS_PER_TOKEN
        if 4 <= tokens_in <= 1024 and tokens_out >= 4 and tokens_in + tokens_out <= 2048:
            samples.append(Sample(prompt, tokens_out))
    random.Random(draw.seed).shuffle(samples)
    return samples


def _trace(kind: str, path: Path, draw: Draw) -> list[Sample]:
    """Equal hash ids give equal blocks of tokens, so that prefixes are shared as in the trace."""
    rng = random.Random(draw.seed)
    samples = []
    for row in read_trace(kind, path)[: draw.num_prompts]:
        ids: list[int] = []
        for block in row.hash_ids:
            ids += _ids(random.Random(f"{draw.seed}/{block}"), row.hash_size, draw.last_id)
        ids += _ids(rng, max(0, row.tokens_in - len(ids)), draw.last_id)
        samples.append(Sample(tuple(ids[: row.tokens_in]), row.tokens_out, row.at_s))
    return samples


_READERS: dict[str, Callable[[Path, Draw], list[Sample]]] = {
    "custom": _custom,
    "sharegpt": _sharegpt,
}
