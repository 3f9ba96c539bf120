"""Send samples to a server at their planned times, no more than a cap at once, and keep a record of each."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from legato.bench.client import Endpoint, Record, send
from legato.bench.datasets import Sample, words

__all__ = ["Plan", "Run", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to send where, and when: `times` are seconds from the start, one per sample, ascending.

    warmups: samples sent first, one at a time, and drained before the clock starts; they are in no figure.
    extra: fields added to each body.
    """

    endpoint: Endpoint
    model: str
    samples: Sequence[Sample]
    times: Sequence[float]
    warmups: Sequence[Sample] = ()
    max_concurrency: int | None = None
    timeout_s: float = 6 * 3600.0
    extra: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """What came of it. `started_s` and `ended_s` are on the clock of the records; cpu_s is what the client used."""

    records: list[Record]
    started_s: float
    ended_s: float
    cpu_s: float
    warmup_failures: int

    @property
    def duration_s(self) -> float:
        return self.ended_s - self.started_s


def run(plan: Plan, done: Callable[[Record], None] = lambda record: None) -> Run:
    """Run the plan to its end. `done` is called as each measured request ends."""
    return asyncio.run(_run(plan, done))


async def _run(plan: Plan, done: Callable[[Record], None]) -> Run:
    bodies = [_body(plan, sample) for sample in plan.samples]  # made before the clock starts
    failures = 0
    for sample in plan.warmups:
        record = Record(0.0, sample.max_tokens)
        await send(plan.endpoint, _body(plan, sample), record, plan.timeout_s)
        failures += record.error != ""
    slots = asyncio.Semaphore(plan.max_concurrency or len(bodies))
    cpu, start = time.process_time(), time.perf_counter()

    async def one(at_s: float, body: bytes, sample: Sample) -> Record:
        record = Record(start + at_s, sample.max_tokens)
        await asyncio.sleep(max(0.0, record.planned_s - time.perf_counter()))
        async with slots:
            await send(plan.endpoint, body, record, plan.timeout_s)
        done(record)
        return record

    each = zip(plan.times, bodies, plan.samples, strict=True)
    records = await asyncio.gather(*(one(*arguments) for arguments in each))
    return Run(records, start, time.perf_counter(), time.process_time() - cpu, failures)


def _body(plan: Plan, sample: Sample) -> bytes:
    body: dict[str, Any] = {"model": plan.model} if plan.model else {}
    if plan.endpoint.chat:
        text = sample.prompt if isinstance(sample.prompt, str) else words(sample.prompt)
        body["messages"] = [{"role": "user", "content": text}]
        body["max_completion_tokens"] = sample.max_tokens
    else:
        body["prompt"] = sample.prompt
        body["max_tokens"] = sample.max_tokens
    body |= {"stream": True, "stream_options": {"include_usage": True}, **plan.extra}
    return json.dumps(body).encode()
