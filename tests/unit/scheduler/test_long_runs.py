"""C02, C10, C11: a hundred thousand steps under each kind of load and policy, all invariants after each of them."""

import random
from dataclasses import replace

import pytest

from legato.core.config import SchedulerConfig
from legato.core.types import FinishReason, Service
from legato.scheduler.scheduler import Scheduler
from support.driving import make_request, record
from support.invariants import check_invariants
from support.oracles import assert_drained
from support.virtual_time import TimedExecutor, roofline

STEPS = 100_000


class Storm:
    """Requests of all kinds come at random, a few more than can be served, and some are aborted or stopped."""

    def __init__(self, policy: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.policy = policy
        self.executor = TimedExecutor(roofline(5, 0.5, 1e-3), num_blocks=9, max_position=100, max_seqs=4)
        config = SchedulerConfig(
            policy=policy,
            max_num_seqs=4,
            max_num_batched_tokens=24,
            long_prefill_token_threshold=10,
            max_step_ms=12,
            priority_ageing_s=2 if policy == "priority" else None,
        )
        self.scheduler = Scheduler(self.executor.info(), config, clock=self.executor.clock)
        self.requests, self.outcomes, self.unwanted = {}, {}, set()

    def add(self) -> None:
        rng = self.rng
        name = f"r{len(self.requests)}"
        prompt = [rng.randrange(3)] * rng.choice([1, 15, 16, 17, 30, 90])
        request = make_request(
            name,
            prompt,
            max_tokens=rng.choice([1, 2, 9, 40, 90]),
            n=rng.choice([1, 1, 2]),
            arrival_s=self.executor.now_s,
        )
        priority = rng.randrange(4) if self.policy == "priority" else 0
        target_s = rng.choice([None, 1.0, 5.0]) if self.policy == "deadline" else None
        request = replace(request, service=Service(priority, f"t{rng.randrange(3)}", ttft_s=target_s))
        self.scheduler.add(request)
        self.requests[name] = request

    def step(self) -> None:
        rng = self.rng
        if rng.random() < 0.06 and len(self.scheduler._ledger.policy.queue) < 12:
            self.add()
        if self.requests and rng.random() < 0.01:
            name = rng.choice(list(self.requests))
            self.unwanted.add(name)
            self.scheduler.abort(name) if rng.random() < 0.5 else self.scheduler.finish(name, 0)
        plan = self.scheduler.plan()
        record(self.outcomes, self.scheduler.take_events())
        if plan is None:
            assert not self.scheduler.has_work, "there is work, but nothing was planned"
            self.add()
            return
        self.executor.launch(plan)
        record(self.outcomes, self.scheduler.commit(plan, self.executor.collect(plan.step_id)))
        check_invariants(self.scheduler)

    def finish(self) -> None:
        while self.scheduler.has_work:
            self.step()
        record(self.outcomes, self.scheduler.take_events())


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair", "deadline", "static"])
def test_a_long_storm(policy: str) -> None:
    storm = Storm(policy, seed=1)
    while len(storm.executor.steps) < STEPS // 5:
        storm.step()
    storm.add = lambda: None  # type: ignore[method-assign]
    storm.finish()
    assert_drained(storm.scheduler)
    assert len(storm.requests) > 500
    assert policy == "static" or storm.scheduler.stats().preemptions > 50
    keys = {(name, choice) for name, request in storm.requests.items() for choice in range(request.params.n)}
    assert storm.outcomes.keys() == keys
    for (name, _), outcome in storm.outcomes.items():
        assert outcome.finish is FinishReason.LENGTH or (outcome.finish and name in storm.unwanted)
        if outcome.finish is FinishReason.LENGTH:
            request = storm.requests[name]
            assert len(outcome.tokens) == min(request.params.max_tokens, 100 - len(request.prompt))
