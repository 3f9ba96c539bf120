"""P3 on the plan runner: a burst of long prompts on a pool that holds little more than one of them."""

from pathlib import Path

from legato.core.config import SchedulerConfig
from legato.core.types import FinishReason
from legato.scheduler.scheduler import Scheduler
from support.driving import drive, make_request
from support.invariants import check_invariants
from support.oracles import assert_drained, assert_same, run_solo
from support.tiny_engines import open_native, tiny_engine


def test_a_burst_of_long_prompts_finishes_with_the_tokens_of_solo_runs(tmp_path: Path) -> None:
    path = tiny_engine(tmp_path / "tiny.legato", max_position_embeddings=1024, num_hidden_layers=1)
    executor = open_native(path, num_blocks=60, max_rows=256, max_seqs=16)

    def scheduler() -> Scheduler:
        return Scheduler(executor.info(), SchedulerConfig(max_num_seqs=16), clock=lambda: 0.0)

    prompts = [[(i * 17 + p * 5) % 79 for p in range(800)] for i in range(16)]
    requests = [make_request(f"r{i}", prompt, seed=i, max_tokens=8) for i, prompt in enumerate(prompts)]
    crowd = scheduler()
    outcomes = drive(crowd, executor, requests, after_step=lambda: check_invariants(crowd))
    assert [outcome.finish for outcome in outcomes.values()] == [FinishReason.LENGTH] * 16
    assert_drained(crowd)
    assert_same(run_solo(lambda: (scheduler(), executor), requests[:3]), dict(list(outcomes.items())[:3]))
    executor.close()
