"""Policy `priority`: lower numbers first, and nobody waits for ever."""

from dataclasses import replace

import pytest

from legato.core.config import SchedulerConfig
from legato.core.errors import RequestError
from legato.core.types import Service
from legato.scheduler.scheduler import Scheduler
from support.driving import drive, make_request, scheduler_for
from support.invariants import check_invariants
from support.oracles import assert_drained, assert_same
from support.scripted import ScriptedExecutor


class Run:
    """A scheduler under a clock of its own."""

    def __init__(self, executor=None, **config):
        self.executor = executor or ScriptedExecutor()
        self.now_s = 0.0
        settings = SchedulerConfig(policy="priority", **config)
        self.scheduler = Scheduler(self.executor.info(), settings, clock=lambda: self.now_s)

    def add(self, name, priority=0, **fields):
        request = make_request(name, [1, 2, 3], arrival_s=self.now_s, **{"max_tokens": 50, **fields})
        self.scheduler.add(replace(request, service=Service(priority=priority)))

    def step(self, count=1):
        for _ in range(count):
            plan = self.scheduler.plan()
            self.executor.launch(plan)
            self.scheduler.commit(plan, self.executor.collect(plan.step_id))
            check_invariants(self.scheduler)

    @property
    def running(self):
        return [sequence.request.request_id for sequence in self.scheduler._ledger.running]


def test_the_lowest_number_is_admitted_first_and_equals_in_order_of_arrival():
    run = Run(max_num_seqs=1)
    for name, priority in (("a", 1), ("b", 0), ("c", -3), ("d", 0)):
        run.add(name, priority, max_tokens=1)
    order = []
    while run.scheduler.has_work:
        plan = run.scheduler.plan()
        order += run.running
        run.executor.launch(plan)
        run.scheduler.commit(plan, run.executor.collect(plan.step_id))
    assert order == ["c", "b", "d", "a"]


def test_one_that_counts_more_takes_the_place_of_the_lowest():
    """C14: all slots are taken by low ones."""
    run = Run(max_num_seqs=3)
    for name, priority in (("a", 1), ("b", 2), ("c", 1)):
        run.add(name, priority)
    run.step(3)
    run.add("high", 0)
    run.step()
    assert run.running == ["high", "a", "c"]
    run.add("another", 0)
    run.step()
    assert run.running == ["high", "another", "a"]
    assert run.scheduler.stats().preemptions == 2


def test_equals_never_take_a_place():
    """C14: neither at once nor after any time, so that they do not take turns."""
    run = Run(max_num_seqs=2, priority_ageing_s=1)
    for name in ("a", "b", "c"):
        run.add(name, 1)
    run.add("low", 2)
    for _ in range(40):
        run.now_s += 10
        run.step()
    assert run.running == ["a", "b"]
    assert run.scheduler.stats().preemptions == 0


def test_one_that_counts_more_takes_the_blocks_it_needs_and_not_without_use():
    executor = ScriptedExecutor(num_blocks=8, block_size=4)
    run = Run(executor)
    run.add("low", 1, max_tokens=25)
    run.add("even", 0, max_tokens=25)
    run.step(5)
    run.scheduler.add(replace(make_request("high", [9] * 20, max_tokens=2), service=Service(priority=-1)))
    run.step()
    assert run.running == ["high"]
    run = Run(ScriptedExecutor(num_blocks=8, block_size=4))
    run.add("low", 1, max_tokens=25)
    run.add("even", 0, max_tokens=25)
    run.step(5)
    run.scheduler.add(replace(make_request("large", [9] * 26, max_tokens=2), service=Service(priority=0)))
    run.step()
    assert run.running == ["even", "low"], "even has the same priority, and without its blocks there are too few"


def test_blocks_that_others_hold_too_are_not_counted_as_room():
    """The low ones share all but a block each with one that counts more: sending them back would not help."""
    run = Run(ScriptedExecutor(num_blocks=20, block_size=4))
    for name, priority in (("even", 0), ("low", 5), ("lower", 5)):
        request = make_request(name, [*range(40), priority], max_tokens=30)
        run.scheduler.add(replace(request, service=Service(priority=priority)))
        run.step(2)
    large = make_request("large", [9] * 32, max_tokens=2)
    run.scheduler.add(replace(large, service=Service(priority=0)))
    run.step()
    assert run.running == ["even", "low", "lower"]
    assert run.scheduler.stats().preemptions == 0


def test_waiting_counts_as_priority():
    """A low one is behind those only that come within its difference in ageing times."""
    run = Run(max_num_seqs=1, priority_ageing_s=10)
    run.add("first", 0, max_tokens=2)
    run.step()
    run.add("low", 3, max_tokens=1)
    order = []
    for second in range(60):
        run.now_s = float(second)
        run.add(f"high {second}", 0, max_tokens=1)
        order += [name for name in run.running if name == "low"]
        run.step()
        order += [name for name in run.running if name == "low"]
        if not any(s.request.request_id == "low" for s in run.scheduler._ledger.policy.queue._numbers):
            break
    assert 29 <= run.now_s <= 33


def test_one_that_has_waited_is_not_sent_back_by_those_it_waited_for():
    run = Run(max_num_seqs=1, priority_ageing_s=10)
    run.add("low", 3)
    run.now_s = 100.0
    run.step()
    run.add("high", 0)
    run.step()
    assert run.running == ["low"]


@pytest.mark.parametrize("seed", range(3))
def test_the_evicted_give_the_same_tokens(seed):
    """C14, C03."""
    executor = ScriptedExecutor(num_blocks=12, block_size=4)
    scheduler = scheduler_for(executor, policy="priority", max_num_seqs=3)
    requests = [
        replace(make_request(f"r{i}", [i] * (3 + i % 5), seed=i, max_tokens=20), service=Service((i * 7 + seed) % 4))
        for i in range(20)
    ]
    arrivals = {3 * i: [lambda s, r=request: s.add(r)] for i, request in enumerate(requests)}
    outcomes = drive(scheduler, executor, (), arrivals, after_step=lambda: check_invariants(scheduler))
    assert scheduler.stats().preemptions > 3
    assert_drained(scheduler)
    roomy = ScriptedExecutor()
    plain = [replace(request, service=Service()) for request in requests]
    assert_same(drive(scheduler_for(roomy), roomy, plain), outcomes)


def test_other_policies_refuse_a_priority():
    for policy in ("fcfs", "fair", "static"):
        request = replace(make_request("r", [1]), service=Service(priority=1))
        with pytest.raises(RequestError, match="--policy priority") as caught:
            scheduler_for(ScriptedExecutor(), policy=policy).check(request)
        assert caught.value.param == "priority"
