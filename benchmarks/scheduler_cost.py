"""What a step costs the scheduler: microseconds of plan + commit, per decoding sequence and per block.

    python benchmarks/scheduler_cost.py [--steps N] [--policies fcfs priority fair deadline]

Sequences of 512 prompt tokens decode while others wait, of 1,000 tenants or 5 priorities. The bar: at most 10 us,
however many wait. Then long prompts are computed, with a prefix cache and without: the difference is what a block costs
to name, to keep and to evict. The bar: 5 us of CPU time. And what a waiting request takes of memory.
"""

import argparse
import statistics
import time
import tracemalloc
from array import array
from itertools import product

from legato.core.config import SchedulerConfig
from legato.core.types import CacheGroup, ExecutorInfo, Request, SamplingParams, Service, StepPlan, StepResult
from legato.scheduler.scheduler import Scheduler

PROMPT = 512
CONTEXT = 4096


def scheduler_with(running: int, waiting: int, policy: str = "fcfs") -> Scheduler:
    info = ExecutorInfo(
        name="none",
        cache_groups=(CacheGroup("full", "full", None, num_layers=1, bytes_per_block=0),),
        block_size=16,
        num_blocks=running * (CONTEXT // 16),
        max_rows=max(running, 512),
        max_seqs=running,
        max_position=CONTEXT,
        vocab_size=50_000,
    )
    config = SchedulerConfig(
        policy=policy,
        max_num_seqs=running,
        max_num_batched_tokens=info.max_rows,
        max_num_queued_reqs=running + 2 * waiting + 1,
    )
    scheduler = Scheduler(info, config)
    params = SamplingParams(max_tokens=CONTEXT - PROMPT, seed=0, temperature=0.0)
    prompt = tuple(range(PROMPT))
    for index in range(running + waiting):
        # The first to come have the lowest number, so that none of those that wait takes a place.
        priority = index * 5 // (running + waiting) if policy == "priority" else 0
        service = Service(priority=priority, tenant=f"t{index % 1000}")
        ends = frozenset({2})
        scheduler.add(Request(f"r{index}", prompt, params, arrival_s=0.0, end_token_ids=ends, service=service))
    return scheduler


def result_of(plan: StepPlan) -> StepResult:
    outputs = len(plan.out_rows)
    return StepResult(
        step_id=plan.step_id,
        tokens=array("i", [7]) * outputs,
        logprobs=array("f", [0.0]) * outputs,
        top_logprobs=(),
        faults=array("b", bytes(plan.num_rows)),
    )


def microseconds(running: int, waiting: int, steps: int, policy: str) -> tuple[float, float]:
    """Median cost of plan and of commit, per decoding sequence."""
    scheduler = scheduler_with(running, waiting, policy)
    planning, committing = [], []
    while len(planning) < steps:
        started = time.perf_counter()
        plan = scheduler.plan()
        planned = time.perf_counter()
        assert plan is not None
        result = result_of(plan)
        before_commit = time.perf_counter()
        scheduler.commit(plan, result)
        committed = time.perf_counter()
        if len(plan.out_rows) == plan.num_rows == running:
            planning.append((planned - started) / running * 1e6)
            committing.append((committed - before_commit) / running * 1e6)
    return statistics.median(planning), statistics.median(committing)


def prefill(prompts: int, length: int, caching: bool) -> float:
    """Microseconds of CPU time of plan and commit while `prompts` different prompts are computed, per block."""
    info = ExecutorInfo(
        name="none",
        cache_groups=(CacheGroup("full", "full", None, num_layers=1, bytes_per_block=0),),
        block_size=16,
        num_blocks=2 * length // 16,  # blocks are evicted, too
        max_rows=512,
        max_seqs=1,
        max_position=length + 1,
        vocab_size=50_000,
    )
    scheduler = Scheduler(info, SchedulerConfig(enable_prefix_caching=caching))
    seconds = 0.0
    for index in range(prompts):
        prompt = tuple((index + 31 * i) % 50_000 for i in range(length))
        scheduler.add(Request(f"r{index}", prompt, SamplingParams(max_tokens=1, seed=0), arrival_s=0.0))
        while scheduler.has_work:
            started = time.thread_time()
            plan = scheduler.plan()
            seconds += time.thread_time() - started
            assert plan is not None
            result = result_of(plan)
            started = time.thread_time()
            scheduler.commit(plan, result)
            seconds += time.thread_time() - started
    return seconds / (prompts * (length // 16)) * 1e6


def waiting_bytes(count: int, length: int) -> float:
    """Bytes per waiting request, its prompt of `length` tokens included. Request and scheduler; not text and HTTP."""
    scheduler = scheduler_with(running=1, waiting=count)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for index in range(count):
        params = SamplingParams(max_tokens=8, seed=index)
        prompt = array("i", bytes(4 * length))
        scheduler.add(Request(f"waiting-{index:08}", prompt, params, arrival_s=float(index)))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="decode steps to measure")
    parser.add_argument("--policies", nargs="+", default=["fcfs", "priority", "fair", "deadline"])
    args = parser.parse_args()
    print("  policy  running  waiting   plan  commit    sum   (us per decoding sequence)")
    loads = ((1, 0), (64, 0), (64, 100), (64, 100_000), (256, 0), (256, 100), (256, 100_000))
    for policy, (running, waiting) in product(args.policies, loads):
        plan, commit = microseconds(running, waiting, args.steps, policy)
        print(f"{policy:>8}  {running:7}  {waiting:7}  {plan:5.2f}  {commit:6.2f}  {plan + commit:5.2f}")
    without, with_cache = (min(prefill(20, 8192, caching) for _ in range(3)) for caching in (False, True))
    print("waiting  prompt   bytes per waiting request")
    for count, length in ((100, 16), (10_000, 16), (10_000, 1024)):
        print(f"{count:7}  {length:6}  {waiting_bytes(count, length):6.0f}")
    print(f"us per block of a prompt: {without:.2f}, with a prefix cache {with_cache:.2f}: +{with_cache - without:.2f}")


if __name__ == "__main__":
    main()
