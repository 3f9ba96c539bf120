from support.driving import drive, make_request, scheduler_for
from support.oracles import assert_drained
from support.scripted import ScriptedExecutor


def test_more_requests_than_blocks_all_finish():
    executor = ScriptedExecutor(num_blocks=8)
    scheduler = scheduler_for(executor)
    outcomes = drive(scheduler, executor, [make_request(f"r{i}", range(1, 20 + i), max_tokens=10) for i in range(20)])
    assert all(len(outcome.tokens) == 10 for outcome in outcomes.values())
    assert_drained(scheduler)
