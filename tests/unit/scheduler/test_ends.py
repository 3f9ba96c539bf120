"""How sequences end: each in exactly one way, and nothing stays behind."""

import pytest

from legato.core.types import FinishReason
from support.driving import drive, make_request, record, scheduler_for
from support.oracles import assert_drained, assert_stream_is_whole
from support.scripted import AnswerAll, ScriptedExecutor, answers

PROMPT = (1, 2, 3)


def run(answer, *, events=None, **fields):
    executor = ScriptedExecutor(emit=answers({PROMPT: answer}, then=50))
    scheduler = scheduler_for(executor)
    outcomes = drive(scheduler, executor, [make_request("r", PROMPT, **fields)], events)
    assert_drained(scheduler)
    return outcomes["r", 0]


def test_an_end_id_ends_it_and_is_among_the_tokens():
    outcome = run([7, 8, 9], ends=[9], max_tokens=10)
    assert (outcome.tokens, outcome.finish, outcome.stop_token) == ([7, 8, 9], FinishReason.STOP, 9)


def test_a_stop_id_ends_it_even_without_end_ids():
    outcome = run([7, 8, 9], stop_token_ids=(8,), max_tokens=10)
    assert (outcome.tokens, outcome.finish, outcome.stop_token) == ([7, 8], FinishReason.STOP, 8)


def test_ids_that_are_no_end_do_not_end_it():
    outcome = run([7, 8, 9], ends=[], max_tokens=5)
    assert (outcome.tokens, outcome.finish, outcome.stop_token) == ([7, 8, 9, 50, 50], FinishReason.LENGTH, None)


def test_the_end_id_as_last_possible_token_is_a_stop():
    assert run([7, 9], ends=[9], max_tokens=2).finish is FinishReason.STOP


@pytest.mark.parametrize(("min_tokens", "length"), [(0, 1), (1, 2), (2, 3), (3, 4)])
def test_end_ids_count_from_min_tokens_on(min_tokens, length):
    outcome = run([9, 9, 9, 9, 9], ends=[9], min_tokens=min_tokens, max_tokens=10)
    assert (len(outcome.tokens), outcome.finish) == (length, FinishReason.STOP)


@pytest.mark.parametrize("max_tokens", [1, 2, 17])
def test_max_tokens(max_tokens):
    outcome = run([7] * 30, max_tokens=max_tokens)
    assert (len(outcome.tokens), outcome.finish) == (max_tokens, FinishReason.LENGTH)


@pytest.mark.parametrize("max_tokens", [None, 5, 1000])
@pytest.mark.parametrize("prompt_length", [1, 31, 60, 63])
def test_the_context_ends_it_exactly_at_the_limit(max_tokens, prompt_length):
    executor = ScriptedExecutor(max_position=64)
    scheduler = scheduler_for(executor)
    outcomes = drive(scheduler, executor, [make_request("r", range(prompt_length), max_tokens=max_tokens)])
    room = 64 - prompt_length
    assert len(outcomes["r", 0].tokens) == (room if max_tokens is None else min(room, max_tokens))
    assert outcomes["r", 0].finish is FinishReason.LENGTH


def test_events_join_to_the_whole():
    executor = ScriptedExecutor()
    scheduler = scheduler_for(executor)
    request = make_request("r", PROMPT, max_tokens=9, logprobs=2)
    whole = drive(scheduler, executor, [request])["r", 0]
    scheduler.add(request)
    events = []
    while plan := scheduler.plan():
        executor.launch(plan)
        events += scheduler.commit(plan, executor.collect(plan.step_id))
    assert_stream_is_whole(events, whole)
    assert len(whole.logprobs) == len(whole.top_logprobs) == 9
    assert all(len(top) == 2 for top in whole.top_logprobs)


def test_logprobs_only_where_asked_for():
    assert run([7, 8], max_tokens=2).logprobs == []
    chosen_only = run([7, 8], max_tokens=2, logprobs=0)
    assert len(chosen_only.logprobs) == 2
    assert all(top == () for top in chosen_only.top_logprobs)


class Stage:
    """One request that can be stopped in any state; at most one place, so that a second request waits."""

    def __init__(self, **executor):
        self.executor = ScriptedExecutor(num_blocks=16, emit=AnswerAll([7] * 100), **executor)
        self.scheduler = scheduler_for(self.executor, max_num_seqs=1, long_prefill_token_threshold=16)
        self.outcomes = {}

    def add(self, name, length=40, **fields):
        self.scheduler.add(make_request(name, range(length), **{"max_tokens": 20, **fields}))

    def launch(self):
        plan = self.scheduler.plan()
        record(self.outcomes, self.scheduler.take_events())
        if plan:
            self.executor.launch(plan)
        return plan

    def commit(self, plan):
        record(self.outcomes, self.scheduler.commit(plan, self.executor.collect(plan.step_id)))

    def steps(self, count):
        for _ in range(count):
            self.commit(self.launch())

    def end_of(self, name, choice=0):
        outcome = self.outcomes[name, choice]
        return len(outcome.tokens), outcome.finish


def test_abort_before_the_first_plan():
    stage = Stage()
    stage.add("r")
    stage.scheduler.abort("r")
    assert stage.scheduler.plan() is None
    assert stage.scheduler.has_work, "its end has not been taken yet"
    record(stage.outcomes, stage.scheduler.take_events())
    assert stage.end_of("r") == (0, FinishReason.ABORT)
    assert_drained(stage.scheduler)


def test_abort_while_queued_never_starts():
    stage = Stage()
    stage.add("first")
    stage.add("queued", seed=9)
    stage.steps(2)
    stage.scheduler.abort("queued")
    while stage.scheduler.has_work:
        stage.steps(1)
    assert stage.end_of("queued") == (0, FinishReason.ABORT)
    assert all(reset.seed != 9 for plan in stage.executor.plans for reset in plan.resets)


@pytest.mark.parametrize(("steps", "tokens"), [(1, 0), (2, 0), (3, 1), (7, 5)])
def test_abort_in_prefill_and_decode(steps, tokens):
    stage = Stage()
    stage.add("r")
    stage.steps(steps)
    stage.scheduler.abort("r")
    stage.scheduler.abort("r")
    assert stage.launch() is None
    assert stage.end_of("r") == (tokens, FinishReason.ABORT)
    assert_drained(stage.scheduler)


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_abort_while_a_step_runs_drops_its_token(steps):
    stage = Stage()
    stage.add("r")
    stage.steps(steps)
    plan = stage.launch()
    before = len(stage.outcomes["r", 0].tokens) if ("r", 0) in stage.outcomes else 0
    stage.scheduler.abort("r")
    stage.commit(plan)
    assert stage.end_of("r") == (before, FinishReason.ABORT)
    assert_drained(stage.scheduler)


def test_abort_in_the_step_that_would_have_ended_it_gives_one_end():
    stage = Stage()
    stage.add("r", length=4, max_tokens=1)
    plan = stage.launch()
    stage.scheduler.abort("r")
    stage.commit(plan)
    assert stage.end_of("r") == (0, FinishReason.ABORT)
    assert_drained(stage.scheduler)


def test_abort_ends_all_choices():
    stage = Stage()
    stage.add("r", n=4)
    stage.steps(4)
    stage.scheduler.abort("r")
    assert stage.launch() is None
    assert [stage.end_of("r", choice)[1] for choice in range(4)] == [FinishReason.ABORT] * 4
    assert_drained(stage.scheduler)


def test_abort_of_what_has_ended_or_never_was_is_nothing():
    stage = Stage()
    stage.add("r", length=4, max_tokens=1)
    stage.steps(1)
    stage.scheduler.abort("r")
    stage.scheduler.abort("unknown")
    stage.scheduler.finish("r", 0)
    assert not stage.scheduler.has_work
    assert stage.end_of("r") == (1, FinishReason.LENGTH)


def test_a_stop_string_drops_the_token_computed_meanwhile():
    stage = Stage()
    stage.add("r", length=4)
    stage.steps(3)
    plan = stage.launch()
    stage.scheduler.finish("r", 0)
    stage.commit(plan)
    assert stage.end_of("r") == (3, FinishReason.STOP)
    assert_drained(stage.scheduler)


def test_a_stop_string_between_steps_ends_it_in_the_next_plan():
    stage = Stage()
    stage.add("r", length=4, n=2)
    stage.steps(3)
    stage.scheduler.finish("r", 0)
    stage.scheduler.abort("r")
    stage.launch()
    assert stage.end_of("r", 0) == (3, FinishReason.STOP)
    assert stage.end_of("r", 1) == (0, FinishReason.ABORT)


def test_what_has_no_output_cannot_hold_a_stop_string():
    stage = Stage()
    stage.add("r")
    stage.scheduler.finish("r", 0)
    stage.steps(1)
    assert stage.scheduler.stats().running == 1


@pytest.mark.parametrize("at", [3, 39, 42])
def test_a_fault_ends_one_and_spares_the_others(at):
    def faulty(history):
        return history[0] == 900 and len(history) == at

    results = {}
    for flag in (None, faulty):
        executor = ScriptedExecutor(faulty=flag)
        scheduler = scheduler_for(executor, long_prefill_token_threshold=16)
        requests = [make_request("bad", [900, *range(39)], max_tokens=20)]
        requests += [make_request(f"r{i}", range(i, i + 30), max_tokens=20) for i in range(3)]
        results[flag] = drive(scheduler, executor, requests)
        assert_drained(scheduler)
    assert results[faulty]["bad", 0].finish is FinishReason.ERROR
    assert "NaN" in results[faulty]["bad", 0].error
    assert len(results[faulty]["bad", 0].tokens) == max(0, at - 40)
    for i in range(3):
        assert results[faulty][f"r{i}", 0] == results[None][f"r{i}", 0]


def test_no_token_is_an_error():
    executor = ScriptedExecutor(emit=lambda history, params, seen: -1)
    scheduler = scheduler_for(executor)
    outcome = drive(scheduler, executor, [make_request("r", PROMPT)])["r", 0]
    assert (outcome.tokens, outcome.finish) == ([], FinishReason.ERROR)
    assert "no token" in outcome.error
    assert outcome.error_param is None


@pytest.mark.parametrize("fields", [{"allowed_token_ids": (5,), "bad_words": ("x",)}, {"bad_words": ("x",)}])
def test_where_no_token_is_left_the_field_is_to_blame(fields):
    executor = ScriptedExecutor(emit=lambda history, params, seen: -1)
    outcome = drive(scheduler_for(executor), executor, [make_request("r", PROMPT, **fields)])["r", 0]
    assert (outcome.finish, outcome.error_param) == (FinishReason.ERROR, next(iter(fields)))
