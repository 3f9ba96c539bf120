"""C02, C10, C11: anything may happen in any order; nothing is lost, and every answer is that of a solo run."""

import random
import zlib
from collections import deque
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from legato.core.errors import RequestError
from legato.core.types import DEVICE_TIER, HOST_TIER, Breakpoint, FinishReason, Service
from support.driving import drive, make_request, record, scheduler_for, step
from support.invariants import check_invariants
from support.oracles import assert_drained, assert_same
from support.scripted import ScriptedExecutor, full_group, window_group

VOCAB = 40
POLICIES = ["fcfs", "priority", "fair", "deadline", "static"]
SAMPLING = [
    {},
    {"temperature": 0.0, "n": 1},
    {"frequency_penalty": 0.5},
    {"min_tokens": 2},
    {"logprobs": 1},
    {"skip_reading_prefix_cache": True},
    {"prompt_logprobs": 1},
    {"prompt_logprobs": 0, "max_tokens": 0},
]


def sometimes_faulty(history):
    return zlib.crc32(bytes(history)) % 101 == 0


def draw_groups(draw):
    windows = draw(st.sampled_from([(None,), (None,), (3,), (None, 5), (7, None, 2)]))
    return tuple(full_group() if window is None else window_group(window) for window in windows)


class AnythingHappens(RuleBasedStateMachine):
    """Requests come, are aborted or stopped, and steps run, in any order, on a tiny pool."""

    @initialize(data=st.data())
    def build(self, data):
        draw = data.draw
        chunk_align = draw(st.sampled_from([1, 1, 1, 3]))
        policy = self.policy = draw(st.sampled_from(POLICIES))
        caching = policy != "static" and draw(st.sampled_from([True, True, True, False]))
        plans_in_flight = draw(st.sampled_from([1, 1, 2, 4]))
        static_padding = policy == "static" and draw(st.booleans())
        self.losing = ()
        self.executor = ScriptedExecutor(
            groups=draw_groups(draw),
            block_size=draw(st.sampled_from([1, 2, 4, 7])),
            num_blocks=draw(st.integers(1, 14)),
            max_rows=draw(st.integers(chunk_align, 24)),
            max_seqs=draw(st.integers(1, 6)),
            max_position=draw(st.integers(2, 40)),
            vocab_size=VOCAB,
            chunk_align=chunk_align,
            plans_in_flight=plans_in_flight,
            faulty=sometimes_faulty,
            host_slots=draw(st.integers(1, 20)) if plans_in_flight == 1 and caching else 0,
            lose=lambda copy: copy.target_tier in self.losing,
            repeats=static_padding,
        )
        self.now = 0.0
        self.scheduler = scheduler_for(
            self.executor,
            clock=self.clock,
            pin_budget=draw(st.sampled_from([0.0, 0.3, 1.0])),
            policy=policy,
            static_padding=static_padding,
            priority_ageing_s=draw(st.sampled_from([1.0, 60.0])) if policy == "priority" else None,
            tenant_weights=("t1=3",) if policy == "fair" else (),
            max_step_ms=draw(st.sampled_from([0.0, 50.0, 1000.0])),
            max_num_seqs=draw(st.integers(1, 6)),
            max_num_batched_tokens=draw(st.integers(chunk_align, 24)),
            long_prefill_token_threshold=draw(st.integers(1, 12)),
            enable_prefix_caching=caching,
        )
        self.requests = {}
        self.outcomes = {}
        self.shown_at_finish = {}
        self.aborted = set()
        self.in_flight = deque()

    @rule(
        start=st.integers(0, 2),
        length=st.integers(1, 20),
        max_tokens=st.integers(1, 20),
        n=st.integers(1, 3),
        kind=st.sampled_from(SAMPLING),
        salt=st.sampled_from(["", "", "salt"]),
        hints=st.lists(st.tuples(st.integers(1, 20), st.sampled_from([10.0, 100.0])), max_size=2),
        priority=st.integers(-1, 2),
        tenant=st.sampled_from(["", "t1", "t2"]),
    )
    def add(self, start, length, max_tokens, n, kind, salt, hints, priority, tenant):
        """Prompts that begin alike, so that blocks are shared, and end in what no other has."""
        name = f"r{len(self.requests)}"
        prompt = [start * 7 + i for i in range(length - 1)] + [len(self.requests) % VOCAB]
        fields = {"seed": len(self.requests), "max_tokens": max_tokens, "n": n, **kind}
        points = tuple(Breakpoint(min(at, length), ttl) for at, ttl in sorted(hints))
        request = make_request(name, prompt, ends=[5], arrival_s=self.now, **fields)
        target_s = [None, 1.0, 20.0, 60.0][priority] if self.policy == "deadline" else None
        service = Service(priority if self.policy == "priority" else 0, tenant, ttft_s=target_s)
        request = replace(request, cache_salt=salt, breakpoints=points, service=service)
        if length >= self.scheduler.context:
            with pytest.raises(RequestError):
                self.scheduler.add(request)
        else:
            self.scheduler.add(request)
            self.requests[name] = request

    def clock(self):
        """Every look at it takes 10 ms, so that steps have a duration and waiting counts."""
        self.now += 0.01
        return self.now

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data):
        name = data.draw(st.sampled_from(sorted(self.requests)))
        self.aborted.add(name)
        self.scheduler.abort(name)

    @precondition(lambda self: any(o.finish is None and o.tokens for o in self.outcomes.values()))
    @rule(data=st.data())
    def stop_string(self, data):
        running = sorted(key for key, o in self.outcomes.items() if o.finish is None and o.tokens)
        key = data.draw(st.sampled_from(running))
        if key[0] not in self.aborted:
            self.shown_at_finish.setdefault(key, list(self.outcomes[key].tokens))
        self.scheduler.finish(*key)

    @rule(seconds=st.sampled_from([1.0, 10.0, 100.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule(tiers=st.sampled_from([(), (DEVICE_TIER,), (DEVICE_TIER,), (HOST_TIER,)]))
    def disk_trouble(self, tiers):
        """From now on copies to these tiers fail."""
        self.losing = tiers

    @precondition(lambda self: len(self.in_flight) < self.executor.info().plans_in_flight)
    @rule()
    def launch(self):
        plan = self.scheduler.plan()
        record(self.outcomes, self.scheduler.take_events())
        if plan:
            self.executor.launch(plan)
            self.in_flight.append(plan)

    @precondition(lambda self: self.in_flight)
    @rule()
    def collect(self):
        plan = self.in_flight.popleft()
        record(self.outcomes, self.scheduler.commit(plan, self.executor.collect(plan.step_id)))

    @rule(count=st.integers(1, 8))
    def run(self, count):
        for _ in range(count):
            if self.scheduler.has_work or self.in_flight:
                step(self.scheduler, self.executor, self.outcomes, self.in_flight)
                check_invariants(self.scheduler)

    @invariant()
    def holds(self):
        check_invariants(self.scheduler)

    def teardown(self):
        if not hasattr(self, "requests"):
            return
        for _ in range(100_000):
            if not (self.scheduler.has_work or self.in_flight):
                break
            step(self.scheduler, self.executor, self.outcomes, self.in_flight)
            check_invariants(self.scheduler)
        assert_drained(self.scheduler)
        self.compare_with_solo()

    def compare_with_solo(self):
        keys = {(name, choice) for name, request in self.requests.items() for choice in range(request.params.n)}
        assert self.outcomes.keys() == keys
        assert all(outcome.finish is not None for outcome in self.outcomes.values())
        for name, request in self.requests.items():
            roomy = ScriptedExecutor(
                num_blocks=200, vocab_size=VOCAB, max_position=self.scheduler.context, faulty=sometimes_faulty
            )
            solo = drive(scheduler_for(roomy), roomy, [replace(request, service=Service())])
            for choice in range(request.params.n):
                mine, alone = self.outcomes[name, choice], solo[name, choice]
                stopped = mine.finish is FinishReason.STOP and mine.stop_token is None
                if mine.finish is FinishReason.ABORT or stopped:
                    assert name in self.aborted or (name, choice) in self.shown_at_finish
                    assert mine.tokens == alone.tokens[: len(mine.tokens)]
                else:
                    assert mine == alone
                if stopped:
                    assert mine.tokens == self.shown_at_finish[name, choice]


AnythingHappens.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestAnythingHappens = AnythingHappens.TestCase


@pytest.mark.parametrize("policy", POLICIES)
def test_two_thousand_requests_leave_nothing_behind(policy):
    """C10: lengths around block borders; aborts and stops on the way."""
    rng = random.Random(1)
    executor = ScriptedExecutor(num_blocks=40, block_size=4, vocab_size=97)
    scheduler = scheduler_for(executor, policy=policy, max_num_seqs=16, max_num_batched_tokens=64)
    events = {}
    for i in range(2000):
        prompt = [rng.randrange(97) for _ in range(rng.choice([1, 3, 4, 5, 7, 8, 9]))]
        request = make_request(f"r{i}", prompt, seed=i, max_tokens=rng.choice([1, 1, 2, 3, 4, 5]))
        events.setdefault(i // 8, []).append(lambda s, request=request: s.add(request))
        if i % 10 == 0:
            events.setdefault(i // 8 + rng.randrange(4), []).append(lambda s, i=i: s.abort(f"r{i}"))
    outcomes = drive(scheduler, executor, (), events, after_step=lambda: check_invariants(scheduler))
    assert len(outcomes) == 2000
    assert all(outcome.finish for outcome in outcomes.values())
    assert_drained(scheduler)
    assert not scheduler._ledger.sequences
    assert not scheduler._in_flight


def test_an_abort_storm_drains_to_baseline():
    rng = random.Random(2)
    executor = ScriptedExecutor(num_blocks=60, block_size=4)
    scheduler = scheduler_for(executor, long_prefill_token_threshold=5)
    requests = [make_request(f"r{i}", range(i % 30 + 1), n=1 + i % 3, max_tokens=30, seed=i) for i in range(200)]
    events = {}
    for request in requests:
        events.setdefault(rng.randrange(60), []).append(lambda s, r=request: s.abort(r.request_id))
    outcomes = drive(scheduler, executor, requests, events, after_step=lambda: check_invariants(scheduler))
    assert sum(outcome.finish is FinishReason.ABORT for outcome in outcomes.values()) > 100
    assert len(outcomes) == sum(request.params.n for request in requests)
    assert_drained(scheduler)


@pytest.mark.parametrize("seed", range(3))
def test_work_always_makes_progress(seed):
    """C02: `drive` fails as soon as there is work but neither a plan nor an event."""
    rng = random.Random(seed)
    executor = ScriptedExecutor(num_blocks=12, block_size=4, max_position=48)
    scheduler = scheduler_for(executor, max_num_batched_tokens=16, long_prefill_token_threshold=6)
    requests = [
        make_request(f"r{i}", range(rng.randrange(1, 47)), max_tokens=rng.randrange(1, 30), seed=i) for i in range(250)
    ]
    outcomes = drive(scheduler, executor, requests)
    assert all(outcome.finish is FinishReason.LENGTH for outcome in outcomes.values())
    assert_drained(scheduler)
    again = drive(scheduler, executor, requests)
    assert_same(outcomes, again)
