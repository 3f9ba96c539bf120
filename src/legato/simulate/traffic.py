"""Requests as a simulation needs them: when, how long, and what their prompts share. Never text.

A prompt begins with blocks of tokens that are named by ids: equal ids stand for equal tokens. What follows is its own.
"""

import math
import random
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from legato.bench.traces import TraceRow
from legato.core.errors import ConfigError
from legato.core.types import Request, SamplingParams, Service

__all__ = ["Lengths", "Prompts", "Visit", "drawn", "gaps", "replayed"]


@dataclass(frozen=True, slots=True)
class Visit:
    """One request. `shared`: ids of the blocks that its prompt begins with, `shared_size` tokens each."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    shared: tuple[int, ...] = ()
    shared_size: int = 0
    priority: int = 0
    tenant: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """How lengths are drawn: log-normal of this mean, `spread` the sigma of the logarithm (0: all the same).

    prefix: tokens that a prompt shares with all others of its group, beside its own `prompt`. Group sizes follow
    1 / rank: a few are large.
    """

    prompt: int
    output: int
    spread: float = 0.0
    longest_prompt: int | None = None  # of the own part
    longest_output: int | None = None
    prefix: int = 0
    groups: int = 1


def gaps(rate: float, burstiness: float, rng: random.Random) -> Iterator[float]:
    """Seconds between arrivals for ever: Gamma(shape burstiness, mean 1 / rate). 1 is a Poisson process."""
    if not rate > 0 or not burstiness > 0:
        raise ConfigError("rate and burstiness must be above 0")
    if math.isinf(rate):
        while True:
            yield 0.0
    scale = 1 / (burstiness * rate)
    while True:
        yield rng.gammavariate(burstiness, scale)


def drawn(count: int, rate: float, burstiness: float, lengths: Lengths, seed: int) -> Iterator[Visit]:
    """`count` requests in order of arrival, drawn one at a time: a million of them take no memory."""
    rng = random.Random(seed)
    weights = list(_cumulated(lengths.groups))
    now_s = 0.0
    for gap in gaps(rate, burstiness, random.Random(seed + 1)) if count else ():
        now_s += gap
        shared: tuple[int, ...] = ()
        if lengths.prefix:
            shared = (rng.choices(range(lengths.groups), cum_weights=weights)[0],)
        own = _length(rng, lengths.prompt, lengths.spread, lengths.longest_prompt)
        output = _length(rng, lengths.output, lengths.spread, lengths.longest_output)
        yield Visit(now_s, lengths.prefix + own, output, shared, lengths.prefix)
        count -= 1
        if count == 0:
            return


def replayed(rows: Iterable[TraceRow], speed: float = 1.0) -> Iterator[Visit]:
    """The requests of a trace, `speed` times as fast. They come in order of time."""
    if not speed > 0:
        raise ConfigError(f"speed must be above 0, not {speed}")
    for row in rows:
        at_s = row.at_s / speed
        yield Visit(at_s, row.tokens_in, row.tokens_out, row.hash_ids, row.hash_size, row.priority, row.tenant)


def _cumulated(groups: int) -> Iterator[float]:
    total = 0.0
    for rank in range(1, groups + 1):
        total += 1 / rank
        yield total


def _length(rng: random.Random, mean: int, spread: float, longest: int | None) -> int:
    length = mean if spread == 0 else round(mean * rng.lognormvariate(-spread * spread / 2, spread))
    return max(1, length if longest is None else min(length, longest))


class Prompts:
    """Makes the requests of visits, with tokens that are equal exactly where the visits say so.

    The tokens of a block, and of the part that is a request's own, begin with a number written in the digits of a large
    base: prefixes are compared from the start, so what follows need not differ.
    """

    def __init__(self, vocab_size: int, *, priorities: bool = False) -> None:
        """priorities: those of the visits count; a policy that knows none would refuse them."""
        if vocab_size < 4:
            raise ConfigError(f"the model has {vocab_size} tokens: too few to tell prompts apart")
        self._priorities = priorities
        self._base = vocab_size - 2
        self._params: dict[int, SamplingParams] = {}
        self._count = 0

    def request(self, visit: Visit) -> Request:
        """The request of the next visit."""
        self._count += 1
        prompt = array("i")
        for block in visit.shared:
            prompt.extend(self._marked(block, 0, visit.shared_size))
        del prompt[visit.prompt_tokens :]
        prompt.extend(self._marked(self._count, 1, visit.prompt_tokens - len(prompt)))
        params = self._sampling(visit.output_tokens)
        service = Service(visit.priority if self._priorities else 0, visit.tenant)
        return Request(str(self._count), prompt, params, visit.at_s, service=service)

    def _marked(self, number: int, kind: int, length: int) -> "array[int]":
        """`length` tokens that begin with the kind (0 or 1) and the number."""
        digits = array("i", [kind])
        while number:
            number, digit = divmod(number, self._base)
            digits.append(2 + digit)
        digits.append(kind)
        return (digits + array("i", [2]) * (length - len(digits)))[:length]

    def _sampling(self, output_tokens: int) -> SamplingParams:
        params = self._params.get(output_tokens)
        if params is None:
            params = self._params[output_tokens] = SamplingParams(
                temperature=0.0, max_tokens=output_tokens, seed=0, ignore_eos=True
            )
        return params
