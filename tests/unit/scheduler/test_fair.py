"""Policy `fair`: equal service for tenants, whatever they ask for."""

from collections import Counter
from dataclasses import replace

import pytest

from legato.cache.block_tables import BlockTables
from legato.core.config import SchedulerConfig
from legato.core.errors import ConfigError
from legato.core.types import Service
from legato.scheduler.fair import Fair, TenantQueue
from legato.scheduler.scheduler import Scheduler
from legato.scheduler.state import Sequence
from support.driving import drive, make_request, scheduler_for
from support.oracles import assert_drained
from support.scripted import ScriptedExecutor
from support.virtual_time import TimedExecutor, roofline

COST = roofline(20.0, 0.3, 2e-5)


def of(tenant, request):
    return replace(request, service=Service(tenant=tenant))


class Load:
    """Tenants that send requests at fixed rates to one engine, in virtual time. It counts as the policy does."""

    def __init__(self, rates, *, prompt=100, answer=40, **config):
        self.executor = TimedExecutor(COST)
        settings = SchedulerConfig(policy="fair", max_num_seqs=8, enable_prefix_caching=False, **config)
        self.scheduler = Scheduler(self.executor.info(), settings, clock=self.executor.clock)
        self.rates, self.prompt, self.answer = rates, prompt, answer
        self.sent = Counter()
        self.begun = set()
        self.served = Counter()

    def run(self, seconds):
        end = self.executor.now_s + seconds
        while self.executor.now_s < end:
            for tenant, rate in self.rates.items():
                while self.sent[tenant] <= self.executor.now_s * rate:
                    self.send(tenant)
            plan = self.scheduler.plan()
            if plan is None:
                self.executor.now_s += 0.01
                continue
            self.executor.launch(plan)
            for event in self.scheduler.commit(plan, self.executor.collect(plan.step_id)):
                tenant = event.request_id.split("/")[0]
                first = event.request_id not in self.begun
                self.begun.add(event.request_id)
                self.served[tenant] += 2 * len(event.tokens) + self.prompt * first

    def send(self, tenant):
        name = f"{tenant}/{self.sent[tenant]}"
        self.sent[tenant] += 1
        request = make_request(name, [1] * self.prompt, max_tokens=self.answer, arrival_s=self.executor.now_s)
        self.scheduler.add(of(tenant, request))


def test_two_tenants_at_ten_to_one_get_equal_service():
    load = Load({"heavy": 80, "light": 8})
    load.run(5)
    load.served.clear()
    load.run(20)
    assert load.scheduler.stats().waiting > 1000, "both ask for more than their share"
    assert load.served["heavy"] == pytest.approx(load.served["light"], rel=0.1)


def test_weights_divide_the_service():
    load = Load({"gold": 12, "iron": 12}, tenant_weights=("gold=3",))
    load.run(5)
    load.served.clear()
    load.run(20)
    assert load.served["gold"] == pytest.approx(3 * load.served["iron"], rel=0.1)


def test_what_one_leaves_the_others_get():
    """Work-conserving: no place is idle while somebody waits, and a light load is served in full."""
    load = Load({"heavy": 30, "light": 1})
    load.run(20)
    light = 20 * (load.prompt + 2 * load.answer)
    assert load.served["light"] == pytest.approx(light, rel=0.15)
    assert load.served["heavy"] > 5 * load.served["light"]
    assert min(len(step.rows) for step in load.executor.steps[20:]) >= 7


def test_a_tenant_that_comes_back_is_served_at_once_and_has_saved_up_nothing():
    load = Load({"busy": 30})
    load.run(20)
    load.rates = {"busy": 30, "back": 30}
    load.sent["back"] = int(load.executor.now_s * 30)
    before = load.scheduler.stats().waiting
    load.served.clear()
    load.run(1)
    assert before > 200
    assert load.served["back"] > 0, "before those of the other tenant that wait"
    load.served.clear()
    load.run(20)
    assert load.served["busy"] == pytest.approx(load.served["back"], rel=0.1)


def test_a_prefix_that_was_found_costs_its_tenant_nothing():
    executor = ScriptedExecutor()
    scheduler = scheduler_for(executor, policy="fair")
    drive(scheduler, executor, [of("a", make_request("r", [5] * 64, max_tokens=1))])
    drive(scheduler, executor, [of("b", make_request("r", [5] * 64, max_tokens=1))])
    assert scheduler._ledger.policy._lanes.counters() == {"a": 64 + 2, "b": 66 + 16 + 2}, "b begins where a was"


def test_choices_are_charged_what_they_compute():
    """The first computes the prompt, the others only what is no whole block of it."""
    executor = ScriptedExecutor(block_size=16)
    scheduler = scheduler_for(executor, policy="fair")
    drive(scheduler, executor, [of("a", make_request("r", [5] * 70, max_tokens=3, n=4))])
    assert scheduler._ledger.policy._lanes.counters() == {"a": 70 + 3 * (70 - 64) + 4 * 3 * 2}


def test_who_is_given_back_a_charge_moves_up():
    queue = TenantQueue({})
    for tenant in ("a", "b"):
        queue.append(Sequence(of(tenant, make_request(tenant, [1])), 0, 100, BlockTables(1)))
    queue.charge("a", 20)
    queue.charge("b", 10)
    assert queue.first().request.request_id == "b"
    queue.charge("a", -15)
    assert queue.first().request.request_id == "a"
    queue.charge("a", 10)
    assert queue.first().request.request_id == "b"


def test_a_preemption_is_not_charged():
    executor = ScriptedExecutor(num_blocks=8, block_size=4)
    scheduler = scheduler_for(executor, policy="fair", enable_prefix_caching=False)
    requests = [of("a", make_request(f"r{i}", [i] * 6, seed=i, max_tokens=20)) for i in range(2)]
    drive(scheduler, executor, requests)
    assert scheduler.stats().preemptions > 0
    assert scheduler._ledger.policy._lanes.counters() == {"a": 2 * (6 + 2 * 20)}
    assert_drained(scheduler)


def test_tenants_that_have_gone_are_forgotten():
    executor = ScriptedExecutor(max_seqs=64)
    scheduler = scheduler_for(executor, policy="fair")
    for i in range(4000):
        scheduler.add(of(f"t{i}", make_request(f"r{i}", [i % 100], max_tokens=1)))
        if i % 50 == 49:
            drive(scheduler, executor)
    queue = scheduler._ledger.policy._lanes
    assert isinstance(queue, TenantQueue)
    assert len(queue.counters()) < 2500
    assert len(queue._heap) < 200


@pytest.mark.parametrize("word", ["a", "=2", "a=x", "a=0", "a=-1", "a=nan", "a=1 b"])
def test_bad_weights_are_named(word):
    with pytest.raises(ConfigError, match="tenant_weights"):
        scheduler_for(ScriptedExecutor(), policy="fair", tenant_weights=(word,))


def test_a_weight_given_twice_or_to_another_policy_is_refused():
    with pytest.raises(ConfigError, match="once each"):
        scheduler_for(ScriptedExecutor(), policy="fair", tenant_weights=("a=1", "a=2"))
    with pytest.raises(ConfigError, match="tenant_weights needs policy fair"):
        scheduler_for(ScriptedExecutor(), tenant_weights=("a=1",))
    assert isinstance(scheduler_for(ScriptedExecutor(), policy="fair")._ledger.policy, Fair)
