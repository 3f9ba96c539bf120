"""A tiny simulated replica, and the log of all that its events say."""

import heapq
import itertools
from collections.abc import Iterable

from legato.core.config import SchedulerConfig
from legato.core.types import CacheGroup, ExecutorInfo
from legato.executor.roofline import AttentionCost, Hardware, ModelProfile, Numbers, Roofline
from legato.simulate.replica import Replica
from legato.simulate.traffic import Prompts, Visit

__all__ = ["HARDWARE", "MODEL", "Log", "replay", "tiny_info"]

MODEL = ModelProfile(
    name="tiny",
    vocab=1000,
    hidden=64,
    max_position=512,
    layers=2,
    params=100_000,
    head=64_000,
    tables=0,
    experts=(),
    attention=(AttentionCost("full", None, 2, 2, 64, 64),),
)
HARDWARE = Hardware(
    name="slow",
    devices=4,
    memory=1 << 30,
    flops={"bf16": 1e9},
    bandwidth=1e9,
    link=1e9,
    link_s=1e-5,
    matmul=0.5,
    prefill=0.5,
    weights=0.8,
    cache=0.5,
    vector=1e8,
    step_s=1e-4,
    sequence_s=1e-6,
    price=2.0,
)


def tiny_info(num_blocks: int = 64, block_size: int = 16, max_seqs: int = 8, max_rows: int = 64) -> ExecutorInfo:
    return ExecutorInfo(
        name="simulated",
        cache_groups=(CacheGroup("full", "full", None, MODEL.layers, 4096),),
        block_size=block_size,
        num_blocks=num_blocks,
        max_rows=max_rows,
        max_seqs=max_seqs,
        max_position=MODEL.max_position,
        vocab_size=MODEL.vocab,
    )


class Log:
    """(seconds, request, token, finish) of every token and every end, in order; -1 and "" stand for none."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str, int, str]] = []
        self.launches = 0

    def __call__(self, begin_s, ends_s, events) -> None:
        self.launches += 1
        longest = max((len(event.tokens) for event in events), default=0)
        for at_s, index in zip(ends_s[-longest:] if longest else (), itertools.count(), strict=False):
            for event in events:
                if index < len(event.tokens):
                    last = index == len(event.tokens) - 1
                    self.lines.append((at_s, event.request_id, event.tokens[index], (last and event.finish) or ""))
        self.lines += [(ends_s[-1], e.request_id, -1, e.finish or "") for e in events if not e.tokens]


def replay(
    visits: Iterable[Visit], info: ExecutorInfo, config: SchedulerConfig, *, leap: bool, num_replicas: int = 1
) -> tuple[Log, list[Replica]]:
    """Serve visits, in turn by that many replicas, to the end."""
    log, prompts = Log(), Prompts(info.vocab_size, priorities=config.policy == "priority")
    cost = Roofline(MODEL, HARDWARE, Numbers("bf16", 2.0, 2.0))
    replicas = [Replica(info, cost, config, log, leap=leap) for _ in range(num_replicas)]
    queue = [(visit.at_s, index, visit) for index, visit in enumerate(visits)]
    heapq.heapify(queue)
    while True:
        replica = min(replicas, key=lambda replica: replica.next_s)
        if queue and queue[0][0] <= replica.next_s:
            at_s, index, visit = heapq.heappop(queue)
            replicas[index % num_replicas].submit(prompts.request(visit), at_s)
        elif replica.next_s < float("inf"):
            replica.step()
        else:
            return log, replicas
