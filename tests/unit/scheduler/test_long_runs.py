"""C02, C10, C11: a hundred thousand steps over all policies, all invariants after each of them.

With chunks, prefix hits, pins, a host tier, a window, several choices, preemption, aborts, stops, faults, lost copies.
"""

import random
from dataclasses import replace

import pytest

from legato.core.config import SchedulerConfig
from legato.core.types import HOST_TIER, Breakpoint, FinishReason, Service, StepPlan, StepResult
from legato.scheduler.scheduler import Scheduler
from support.driving import make_request, record
from support.invariants import check_invariants
from support.oracles import assert_drained
from support.scripted import full_group, window_group
from support.virtual_time import TimedExecutor, roofline

POLICIES = ["fcfs", "priority", "fair", "deadline", "static"]
STEPS = 100_000 // len(POLICIES)  # of each


class Storm:
    """Requests of all kinds come at random, a few more than can be served, and some are aborted or stopped."""

    def __init__(self, policy: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.policy = policy
        self.executor = TimedExecutor(
            roofline(5, 0.5, 1e-3),
            num_blocks=9,
            max_position=100,
            max_seqs=4,
            groups=(full_group(), window_group(20)),
            host_slots=0 if policy == "static" else 12,
        )
        config = SchedulerConfig(
            policy=policy,
            max_num_seqs=4,
            max_num_batched_tokens=24,
            long_prefill_token_threshold=10,
            max_step_ms=12,
            pin_budget=0.3,
            priority_ageing_s=2 if policy == "priority" else None,
        )
        self.scheduler = Scheduler(self.executor.info(), config, clock=self.executor.clock)
        self.requests, self.outcomes, self.unwanted = {}, {}, set()
        self.num_faults = self.num_lost = 0

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
        points = (Breakpoint(len(prompt), rng.choice([1.0, 5.0])),) if rng.random() < 0.3 else ()
        service = Service(priority, f"t{rng.randrange(3)}", ttft_s=target_s)
        request = replace(request, service=service, breakpoints=points)
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
        result = self.trouble(plan, self.executor.collect(plan.step_id))
        record(self.outcomes, self.scheduler.commit(plan, result))
        check_invariants(self.scheduler)

    def trouble(self, plan: StepPlan, result: StepResult) -> StepResult:
        """Now and then a row is not finite, or blocks do not come back from the host tier."""
        restored = [index for index, copy in enumerate(plan.copies) if copy.source_tier == HOST_TIER]
        if restored and self.rng.random() < 0.05:
            self.num_lost += 1
            result = replace(result, lost_copies=(self.rng.choice(restored),))
        if self.rng.random() < 0.002:
            self.num_faults += 1
            result.faults[self.rng.randrange(plan.num_rows)] = 1
        return result

    def finish(self) -> None:
        while self.scheduler.has_work:
            self.step()
        record(self.outcomes, self.scheduler.take_events())


@pytest.mark.parametrize("policy", POLICIES)
def test_a_long_storm(policy: str) -> None:
    storm = Storm(policy, seed=1)
    while len(storm.executor.steps) < STEPS:
        storm.step()
    storm.add = lambda: None  # type: ignore[method-assign]
    storm.finish()
    assert_drained(storm.scheduler)
    assert len(storm.requests) > 500
    assert storm.num_faults > 10
    if policy != "static":
        stats = storm.scheduler.stats()
        assert min(stats.preemptions, stats.prefix_hits, stats.prefix_hits_host) > 50
        assert storm.num_lost > 5
    keys = {(name, choice) for name, request in storm.requests.items() for choice in range(request.params.n)}
    assert storm.outcomes.keys() == keys
    assert sum(o.finish is FinishReason.ERROR for o in storm.outcomes.values()) <= storm.num_faults
    for (name, _), outcome in storm.outcomes.items():
        whole = outcome.finish is FinishReason.LENGTH
        assert whole or outcome.finish is FinishReason.ERROR or (outcome.finish and name in storm.unwanted)
        if whole:
            request = storm.requests[name]
            assert len(outcome.tokens) == min(request.params.max_tokens, 100 - len(request.prompt))
