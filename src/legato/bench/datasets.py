"""What to ask a server: prompts and answer lengths, drawn or read from a file, some with times of their own.

random, single, uniform, mixed, agent   drawn; token ids, so that lengths are exact whatever the tokenizer
custom       JSONL, one {"prompt": text, "output_tokens": N} per line
sharegpt     JSON array of {"conversations": [{"value": prompt}, {"value": answer}, ...]}
timed_trace  JSONL, one {"timestamp": ms, "input_length", "output_length", "hash_ids"} per line, as Mooncake publishes
burstgpt     CSV with the columns Timestamp (seconds), Request tokens, Response tokens
"""

import csv
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legato.bench.workloads import FIRST_ID, WORKLOADS, standard
from legato.core.errors import ConfigError

__all__ = ["DATASETS", "READ", "Draw", "Sample", "load", "words"]

READ = ("custom", "sharegpt", "timed_trace", "burstgpt")
DATASETS = ("random", *WORKLOADS, *READ)
TRACE_BLOCK = 512  # tokens that one hash id of a Mooncake trace stands for
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
            samples = _READERS[name](path, draw)
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


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    value = json.loads(line)
                except ValueError as error:
                    raise ValueError(f"line {number}: {error}") from None
                if not isinstance(value, dict):
                    raise ValueError(f"line {number}: not a JSON object")
                yield number, value


def _field(value: dict[str, Any], name: str, kind: type | tuple[type, ...], line: int) -> Any:
    found = value.get(name)
    if not isinstance(found, kind) or isinstance(found, bool):
        raise ValueError(f"line {line}: {name} is missing or of a wrong type")
    return found


def _custom(path: Path, draw: Draw) -> list[Sample]:
    return [
        Sample(
            _field(value, "prompt", str, line),
            _field({"output_tokens": draw.output_len, **value}, "output_tokens", int, line),
        )
        for line, value in _lines(path)
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


def _timed_trace(path: Path, draw: Draw) -> list[Sample]:
    """Equal hash ids give equal blocks of tokens, so that prefixes are shared as in the trace."""
    samples = []
    for line, value in _lines(path):
        tokens_in = _field(value, "input_length", int, line)
        blocks = value.get("hash_ids") or [f"{line}.{i}" for i in range(-(-tokens_in // TRACE_BLOCK))]
        ids = [id for block in blocks for id in _ids(random.Random(f"{draw.seed}/{block}"), TRACE_BLOCK, draw.last_id)]
        if len(ids) < tokens_in:
            raise ValueError(f"line {line}: {len(blocks)} hash_ids cannot hold input_length {tokens_in}")
        at_s = _field(value, "timestamp", (int, float), line) / 1000
        samples.append(Sample(tuple(ids[:tokens_in]), _field(value, "output_length", int, line), at_s))
    return _from_zero(samples)


def _burstgpt(path: Path, draw: Draw) -> list[Sample]:
    rng = random.Random(draw.seed)
    samples = []
    with path.open(encoding="utf-8", newline="") as file:
        for line, row in enumerate(csv.DictReader(file), 2):
            try:
                tokens_in, tokens_out = int(row["Request tokens"]), int(row["Response tokens"])
                at_s = float(row["Timestamp"])
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"line {line}: {type(error).__name__} {error}") from None
            if tokens_in > 0 and tokens_out > 0:  # no response: a request that failed when the trace was taken
                samples.append(Sample(_ids(rng, tokens_in, draw.last_id), tokens_out, at_s))
    return _from_zero(samples)


def _from_zero(samples: list[Sample]) -> list[Sample]:
    samples.sort(key=lambda sample: sample.at_s or 0.0)
    first = samples[0].at_s or 0.0 if samples else 0.0
    return [Sample(s.prompt, s.max_tokens, (s.at_s or 0.0) - first) for s in samples]


_READERS: dict[str, Callable[[Path, Draw], list[Sample]]] = {
    "custom": _custom,
    "sharegpt": _sharegpt,
    "timed_trace": _timed_trace,
    "burstgpt": _burstgpt,
}
