"""Policy `deadline`: earliest deadline first, and what cannot be met is refused."""

import random
from dataclasses import replace

import pytest

from legato.core.config import SchedulerConfig
from legato.core.errors import QueueFullError, RequestError
from legato.core.types import Service
from legato.scheduler.scheduler import Scheduler
from support.driving import drive, make_request, scheduler_for
from support.scripted import ScriptedExecutor
from support.virtual_time import TimedExecutor, roofline

COST = roofline(20.0, 0.3, 2e-5)


class Server:
    """An engine in virtual time. `first_s`, `end_s`: when each request got its first token, and ended."""

    def __init__(self, policy):
        self.policy = policy
        self.executor = TimedExecutor(COST)
        config = SchedulerConfig(policy=policy, max_num_seqs=8, enable_prefix_caching=False)
        self.scheduler = Scheduler(self.executor.info(), config, clock=self.executor.clock)
        self.first_s, self.end_s, self.refused = {}, {}, {}

    def send(self, name, at_s, *, ttft_s=None, e2e_s=None, prompt=100, answer=40):
        service = Service(ttft_s=ttft_s, e2e_s=e2e_s) if self.policy == "deadline" else Service()
        request = replace(make_request(name, [1] * prompt, max_tokens=answer, arrival_s=at_s), service=service)
        try:
            self.scheduler.judge(request)
        except QueueFullError as error:
            self.refused[name] = error.retry_after_s
        else:
            self.scheduler.add(request)

    def step(self):
        plan = self.scheduler.plan()
        if plan is None:
            self.executor.now_s += 0.005
            return
        self.executor.launch(plan)
        for event in self.scheduler.commit(plan, self.executor.collect(plan.step_id)):
            self.first_s.setdefault(event.request_id, self.executor.now_s)
            if event.finish is not None:
                self.end_s[event.request_id] = self.executor.now_s

    def run(self, arrivals):
        """arrivals: (seconds, name, targets), ascending."""
        waiting = list(reversed(arrivals))
        while waiting or self.scheduler.has_work:
            while waiting and waiting[-1][0] <= self.executor.now_s:
                at_s, name, targets = waiting.pop()
                self.send(name, at_s, **targets)
            self.step()


def overload(seconds=30, rate=16):
    """About twice what the engine can serve; a third of it is in a hurry."""
    rng = random.Random(3)
    at_s, arrivals = 0.0, []
    while at_s < seconds:
        at_s += rng.expovariate(rate)
        ttft_s = rng.choice([1.0, 4.0, 4.0])
        fields = {"ttft_s": ttft_s, "e2e_s": ttft_s + 3, "answer": rng.randint(10, 70)}
        arrivals.append((at_s, f"r{len(arrivals)}", fields))
    return arrivals


def good(server, arrivals):
    """Requests whose targets were met."""
    return sum(
        server.first_s.get(name, 1e9) <= at_s + targets["ttft_s"]
        and server.end_s.get(name, 1e9) <= at_s + targets["e2e_s"]
        for at_s, name, targets in arrivals
    )


def test_under_overload_more_targets_are_met_than_first_come_first_served():
    arrivals = overload()
    results = {}
    for policy in ("fcfs", "deadline"):
        server = Server(policy)
        server.run(arrivals)
        results[policy] = good(server, arrivals), len(arrivals) - len(server.refused)
    (fcfs, _), (deadline, accepted) = results["fcfs"], results["deadline"]
    assert deadline >= 3 * fcfs
    assert deadline >= 0.95 * accepted, "what is accepted is met"
    assert deadline >= 0.5 * len(arrivals), "and not for want of accepting"


def test_the_earliest_deadline_is_first():
    executor = ScriptedExecutor()
    scheduler = scheduler_for(executor, policy="deadline", max_num_seqs=1)
    targets = {"none": {}, "slow": {"ttft_s": 9.0}, "whole": {"e2e_s": 3.0}, "fast": {"ttft_s": 1.0}}
    for i, (name, fields) in enumerate(targets.items()):
        scheduler.add(replace(make_request(name, [1], seed=i, max_tokens=1), service=Service(**fields)))
    drive(scheduler, executor)
    order = [list(targets)[reset.seed] for plan in executor.plans for reset in plan.resets]
    assert order == ["fast", "whole", "slow", "none"]


def test_prompts_that_are_due_later_do_not_keep_one_in_a_hurry_outside():
    """They would fill every step; it is served before them, so it enters at once."""
    executor = ScriptedExecutor()
    scheduler = scheduler_for(executor, policy="deadline", max_num_batched_tokens=32, long_prefill_token_threshold=16)
    requests = [make_request(f"long{i}", [i] * 300, max_tokens=1) for i in range(2)]
    urgent = replace(make_request("urgent", [9] * 10, seed=1, max_tokens=1), service=Service(ttft_s=0.5))
    drive(scheduler, executor, requests, {1: [lambda s: s.add(urgent)]})
    assert [reset.seed for reset in executor.plans[1].resets] == [1]
    assert len(executor.plans[1].out_rows) == 1


def test_one_without_a_target_is_not_behind_others_for_ever():
    server = Server("deadline")
    server.send("patient", 0.0)
    arrivals = [(0.05 * i, f"r{i}", {"ttft_s": 30.0}) for i in range(1200)]
    server.run(arrivals)
    assert server.first_s["patient"] <= 62


def test_retry_after_is_honest():
    """Who is refused, and comes back after that time, is taken and gets what it asked for, if nobody came meanwhile."""
    server = Server("deadline")
    for i in range(60):
        server.send(f"before{i}", 0.0)
    while server.executor.now_s < 3:
        server.step()
    now_s = server.executor.now_s
    server.scheduler.judge(make_request("any", [1] * 100))
    late = replace(make_request("late", [1] * 100, max_tokens=40, arrival_s=now_s), service=Service(ttft_s=61.0))
    server.scheduler.judge(late)
    for i in range(60):
        server.send(f"hurry{i}", now_s, ttft_s=2.0)
    assert 0 < len(server.refused) < 60
    wait_s = server.refused["hurry59"]
    assert 0.01 < wait_s < 20
    while server.executor.now_s < now_s + wait_s:
        server.step()
    again_s = server.executor.now_s
    server.send("again", again_s, ttft_s=2.0)
    assert "again" not in server.refused
    while server.scheduler.has_work:
        server.step()
    assert server.first_s["again"] <= again_s + 2.0


@pytest.mark.parametrize("name", ["ttft_s", "e2e_s"])
def test_targets_are_checked_and_need_the_policy(name):
    field = name.replace("_s", "_target_ms")
    for policy, value in (("fcfs", 1.0), ("deadline", 0.0), ("deadline", -1.0), ("deadline", 1e9)):
        request = replace(make_request("r", [1]), service=Service(**{name: value}))
        with pytest.raises(RequestError) as caught:
            scheduler_for(ScriptedExecutor(), policy=policy).check(request)
        assert caught.value.param == field
