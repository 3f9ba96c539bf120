"""The metrics say what happened: names, types, labels and buckets as vLLM has them, and counts that are true."""

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from legato.core.config import EngineConfig, SchedulerConfig
from legato.core.errors import QueueFullError
from legato.core.types import HOST_TIER, FinishReason, Request, SamplingParams
from legato.engine.assemble import Engine, assemble
from legato.engine.outputs import Output
from legato.engine.timeline import Timeline
from support.byte_level import ASSETS, EOS, VOCAB, byte_tokens
from support.driving import make_request
from support.scripted import ScriptedExecutor, hashed

LABELS = {"model_name": "scripted", "engine": "0"}
_E2E = [0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680]
_ITL = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80]
_TTFT = [
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
]
_LENGTHS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]  # the longest sequence here has 1,025 tokens
# What vLLM's dashboards and the routers in front of it read: type, labels beside the common two, buckets.
VLLM: dict[str, tuple[str, set[str], list[float]]] = {
    "num_requests_running": ("gauge", set(), []),
    "num_requests_waiting": ("gauge", set(), []),
    "num_requests_waiting_by_reason": ("gauge", {"reason"}, []),
    "engine_sleep_state": ("gauge", {"sleep_state"}, []),
    "kv_cache_usage_perc": ("gauge", set(), []),
    "prefix_cache_queries": ("counter", set(), []),
    "prefix_cache_hits": ("counter", set(), []),
    "num_preemptions": ("counter", set(), []),
    "corrupted_requests": ("counter", set(), []),
    "prompt_tokens": ("counter", set(), []),
    "prompt_tokens_by_source": ("counter", {"source"}, []),
    "prompt_tokens_cached": ("counter", set(), []),
    "prompt_tokens_cached_by_source": ("counter", {"source"}, []),
    "generation_tokens": ("counter", set(), []),
    "request_success": ("counter", {"finished_reason"}, []),
    "request_prompt_tokens": ("histogram", set(), _LENGTHS),
    "request_generation_tokens": ("histogram", set(), _LENGTHS),
    "request_max_num_generation_tokens": ("histogram", set(), _LENGTHS),
    "request_params_max_tokens": ("histogram", set(), _LENGTHS),
    "request_prefill_kv_computed_tokens": ("histogram", set(), _LENGTHS),
    "request_params_n": ("histogram", set(), [1, 2, 5, 10, 20]),
    "request_num_preemptions": ("histogram", set(), [1, 2, 3, 4, 5, 10, 20]),
    "iteration_tokens_total": (
        "histogram",
        set(),
        [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384],
    ),
    "time_to_first_token_seconds": ("histogram", set(), _TTFT),
    "inter_token_latency_seconds": ("histogram", set(), _ITL),
    "request_time_per_output_token_seconds": ("histogram", set(), _ITL),
    **{
        f"{name}_seconds": ("histogram", set(), _E2E)
        for name in (
            "e2e_request_latency",
            "request_queue_time",
            "request_inference_time",
            "request_prefill_time",
            "request_decode_time",
        )
    },
}


def engine(executor: ScriptedExecutor, **scheduler: int) -> Engine:
    return assemble(executor, ASSETS, EngineConfig(scheduler=SchedulerConfig(**scheduler)), "scripted")


def value(it: Engine, name: str, **labels: str) -> float:
    found = it.metrics.registry.get_sample_value(name, {**LABELS, **labels})
    assert found is not None, f"there is no {name} {labels}"
    return found


def request(it: Engine, text: str, **params: Any) -> Request:
    return it.inputs.request(byte_tokens(text), SamplingParams(**{"max_tokens": 3, "ignore_eos": True, **params}))


def run(it: Engine, *requests: Request) -> None:
    it.loop.submit(requests)
    while it.loop.busy:
        it.loop.step()


def families(it: Engine) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(it.metrics.text().decode())}


@pytest.mark.parametrize("name", VLLM)
def test_a_metric_is_as_vllm_has_it(name: str) -> None:
    kind, labels, buckets = VLLM[name]
    it = engine(ScriptedExecutor(vocab_size=VOCAB))
    family = families(it)[f"vllm:{name}"]
    assert family.type == kind
    samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    assert {key for sample in samples for key in sample.labels} - {"le"} == {*LABELS, *labels}
    assert {sample.name.removeprefix(f"vllm:{name}") for sample in samples} == {
        "gauge": {""},
        "counter": {"_total"},
        "histogram": {"_bucket", "_count", "_sum"},
    }[kind]
    bounds = [sample.labels["le"] for sample in samples if sample.name.endswith("_bucket")]
    assert bounds == ([*(str(float(bound)) for bound in buckets), "+Inf"] if buckets else [])
    if kind != "gauge":
        assert f"vllm:{name}_created" in families(it)


def test_facts_are_told_as_labels() -> None:
    it = engine(ScriptedExecutor(vocab_size=VOCAB))
    found = families(it)
    (cache,) = found["vllm:cache_config_info"].samples
    assert cache.value == 1
    assert (cache.labels["block_size"], cache.labels["num_gpu_blocks"]) == ("16", "64"), "what routers read"
    assert cache.labels["enable_prefix_caching"] == "True"
    (build,) = found["legato:build_info"].samples
    assert build.labels["executor"] == "scripted"
    assert {"process_resident_memory_bytes", "process_cpu_seconds", "python_info"} <= set(found)


def test_all_names_are_ours_or_known() -> None:
    names = families(engine(ScriptedExecutor(vocab_size=VOCAB)))
    assert all(re.match(r"vllm:|legato:|process_|python_", name) for name in names)


class Seen:
    """What the requests saw."""

    def __init__(self, it: Engine) -> None:
        self.outputs: list[Output] = []
        self.timelines: list[Timeline] = []
        it.loop.publish = self.outputs.extend
        it.metrics.requests.on_end = self.timelines.append

    def tokens(self) -> int:
        return sum(len(output.tokens) for output in self.outputs)

    def ends(self) -> Counter[str]:
        return Counter(output.finish.value for output in self.outputs if output.finish is not None)


REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 90),  # length of the prompt; many begin alike
        st.integers(1, 40),  # max_tokens
        st.integers(1, 3),  # n
        st.integers(0, 12),  # aborted before this step; 0: not
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=40, deadline=None)
@given(requests=REQUESTS, num_blocks=st.integers(9, 24), end=st.booleans(), faulty=st.booleans())
def test_counters_equal_what_the_requests_saw(
    requests: list[tuple[int, int, int, int]], num_blocks: int, end: bool, faulty: bool
) -> None:
    executor = ScriptedExecutor(
        vocab_size=VOCAB,
        num_blocks=num_blocks,
        max_rows=40,
        max_seqs=6,
        emit=lambda history, params, seen: (
            EOS if end and len(history) % 23 == 0 else hashed(VOCAB)(history, params, seen)
        ),
        faulty=(lambda history: len(history) == 77) if faulty else None,
    )
    it = engine(executor, max_num_seqs=6, long_prefill_token_threshold=16)
    seen = Seen(it)
    made = [
        (request(it, "a" * length, max_tokens=min(most, num_blocks * 16 - length), n=n, ignore_eos=False), stop)
        for length, most, n, stop in requests
        if length < num_blocks * 16
    ]
    it.loop.submit([each for each, _ in made])
    step = 0
    while it.loop.busy:
        step += 1
        for each, stop in made:
            if stop == step:
                it.loop.abort(each.request_id)
        it.loop.step()
    ends, choices = seen.ends(), sum(each.params.n for each, _ in made)
    assert sum(ends.values()) == choices
    for reason in FinishReason:
        assert value(it, "vllm:request_success_total", finished_reason=reason.value) == ends[reason.value]
    assert value(it, "vllm:corrupted_requests_total") == ends["error"]
    assert value(it, "vllm:generation_tokens_total") == seen.tokens()
    _check_prompts(it, seen, made)
    _check_histograms(it, seen, made)
    _check_steps(it, executor)
    assert it.metrics.requests.num_live == 0


def test_tokens_that_came_back_from_the_disk_are_told_apart() -> None:
    it = engine(ScriptedExecutor(num_blocks=8, block_size=4, host_slots=50))
    for number, start in enumerate((0, 100, 0)):
        it.loop.submit([make_request(f"r{number}", range(start, start + 22), max_tokens=2)])
        while it.loop.busy:
            it.loop.step()
    by_source = [value(it, "vllm:prompt_tokens_cached_by_source_total", source=name) for name in ("device", "disk")]
    assert sum(by_source) == value(it, "vllm:prompt_tokens_cached_total") == 20
    assert by_source[1] > 0
    assert value(it, "legato:kv_disk_blocks") > 0
    assert value(it, "legato:kv_disk_failures_total") == 0


def test_blocks_that_the_disk_does_not_take_are_counted() -> None:
    it = engine(
        ScriptedExecutor(num_blocks=8, block_size=4, host_slots=50, lose=lambda copy: copy.target_tier == HOST_TIER)
    )
    for number in range(2):
        it.loop.submit([make_request(f"r{number}", range(100 * number, 100 * number + 22), max_tokens=2)])
        while it.loop.busy:
            it.loop.step()
    assert value(it, "legato:kv_disk_failures_total") > 0
    assert value(it, "legato:kv_disk_blocks") == 0


def _check_prompts(it: Engine, seen: Seen, made: list[tuple[Request, int]]) -> None:
    begun = {
        output.request_id: output.num_cached
        for output in reversed(seen.outputs)
        if output.choice == 0 and output.tokens
    }
    prompts = sum(len(each.prompt) for each, _ in made if each.request_id in begun)
    cached = sum(begun.values())
    assert value(it, "vllm:prompt_tokens_total") == prompts
    assert value(it, "vllm:prompt_tokens_cached_total") == cached
    assert value(it, "vllm:prompt_tokens_cached_by_source_total", source="device") == cached
    sources = [
        value(it, "vllm:prompt_tokens_by_source_total", source=source)
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
    ]
    assert sources == [prompts - cached, cached, 0]


def _check_histograms(it: Engine, seen: Seen, made: list[tuple[Request, int]]) -> None:
    count = Counter((output.request_id, output.choice) for output in seen.outputs if output.tokens)
    assert value(it, "vllm:inter_token_latency_seconds_count") == sum(count.values()) - len(count)
    assert value(it, "vllm:request_decode_time_seconds_count") == len(count)
    assert value(it, "vllm:request_prefill_time_seconds_count") == len(count)
    assert value(it, "vllm:request_generation_tokens_sum") == seen.tokens()
    assert value(it, "vllm:request_params_n_sum") == sum(each.params.n for each, _ in made)
    assert value(it, "vllm:request_prompt_tokens_sum") == sum(len(each.prompt) for each, _ in made)
    assert value(it, "vllm:request_num_preemptions_sum") == value(it, "vllm:num_preemptions_total")
    assert value(it, "vllm:request_num_preemptions_sum") == sum(line.num_preemptions for line in seen.timelines)
    longest = sum(max(line.num_tokens) for line in seen.timelines)
    assert value(it, "vllm:request_max_num_generation_tokens_sum") == longest
    assert len(seen.timelines) == len(made)
    for line in seen.timelines:
        times = [line.arrival_s, line.scheduled_s, line.first_token_s, line.end_s]
        known = [each for each in times if each is not None]
        assert known == sorted(known)
        assert (line.first_token_s is None) == (not any(line.num_tokens))


def _check_steps(it: Engine, executor: ScriptedExecutor) -> None:
    assert value(it, "legato:steps_total") == len(executor.plans)
    assert value(it, "vllm:iteration_tokens_total_sum") == sum(plan.num_rows for plan in executor.plans)
    assert value(it, "legato:step_sequences_sum") == sum(plan.num_seqs for plan in executor.plans)
    assert value(it, "legato:kv_blocks", state="used") == 0
    assert value(it, "legato:sequence_slots", state="free") == 6


def test_refused_requests_are_counted_by_the_limit() -> None:
    it = engine(ScriptedExecutor(vocab_size=VOCAB), max_num_seqs=1, max_num_queued_reqs=2, max_num_queued_tokens=20)
    it.loop.submit([request(it, "a" * 15), request(it, "b")])
    for text in ("c", "d" * 9, "e"):
        with pytest.raises(QueueFullError):
            it.loop.submit([request(it, text), request(it, text)] if text == "e" else [request(it, text, n=2)])
    it.loop.step()
    with pytest.raises(QueueFullError):
        it.loop.submit([request(it, "f" * 21)])

    def refused(reason: str) -> float | None:
        labels = {"model_name": "scripted", "reason": reason}
        return it.metrics.registry.get_sample_value("vllm:admission_rejections_total", labels)

    assert (refused("max_num_queued_reqs"), refused("max_num_queued_tokens")) == (3, 1)


def test_times_of_a_waiting_request_are_told_apart() -> None:
    """Two requests, one place: the second one queues while the first one runs."""
    it = engine(ScriptedExecutor(vocab_size=VOCAB), max_num_seqs=1)
    seen = Seen(it)
    run(it, request(it, "a", max_tokens=5), request(it, "b", max_tokens=1))
    first, second = seen.timelines
    assert first.scheduled_s is not None
    assert second.scheduled_s is not None
    assert second.first_token_s is not None
    assert first.scheduled_s < second.scheduled_s < second.first_token_s
    assert first.first_token_s is not None
    assert first.first_token_s < second.scheduled_s, "it waited for the first one"
    assert value(it, "vllm:request_queue_time_seconds_count") == 2
    assert value(it, "vllm:request_time_per_output_token_seconds_count") == 1, "one token has no gap"


def test_a_prompt_that_is_only_scored_counts() -> None:
    it = engine(ScriptedExecutor(vocab_size=VOCAB))
    run(it, request(it, "abcdef", max_tokens=0, prompt_logprobs=0))
    assert value(it, "vllm:prompt_tokens_total") == value(it, "vllm:request_prefill_kv_computed_tokens_sum") == 6
    assert value(it, "vllm:request_prefill_time_seconds_count") == 1
    assert value(it, "vllm:generation_tokens_total") == 0


def test_a_request_that_never_ran_has_no_first_token() -> None:
    it = engine(ScriptedExecutor(vocab_size=VOCAB), max_num_seqs=1)
    seen = Seen(it)
    waits = request(it, "b")
    it.loop.submit([request(it, "a", max_tokens=9), waits])
    it.loop.step()
    it.loop.abort(waits.request_id)
    while it.loop.busy:
        it.loop.step()
    line = next(line for line in seen.timelines if line.request is waits)
    assert (line.scheduled_s, line.first_token_s, line.finishes) == (None, None, (FinishReason.ABORT,))
    assert value(it, "vllm:time_to_first_token_seconds_count") == 1
    assert value(it, "vllm:request_queue_time_seconds_count") == 1
    assert value(it, "vllm:e2e_request_latency_seconds_count") == 2


def test_the_loop_says_where_its_time_goes() -> None:
    executor = ScriptedExecutor(vocab_size=VOCAB)
    it = engine(executor)
    run(it, request(it, "a"))
    phases = ("inbox", "plan", "launch", "render", "collect", "commit")
    assert all(value(it, "legato:loop_seconds_total", phase=phase) > 0 for phase in phases)
    assert value(it, "legato:loop_seconds_total", phase="idle") == 0


def test_idle_time_is_told_while_it_lasts() -> None:
    """And what was told is never taken back: Prometheus would take that for a restart."""
    it = engine(ScriptedExecutor(vocab_size=VOCAB))
    readings: list[float] = []

    def idle() -> None:
        readings.extend(value(it, "legato:loop_seconds_total", phase="idle") for _ in range(3))

    it.metrics.phases.timed("idle", idle)
    assert 0 < readings[0] < readings[1] < readings[2]
    assert value(it, "legato:loop_seconds_total", phase="idle") >= readings[2]


def test_memory_is_told_by_pool_and_kind() -> None:
    it = engine(ScriptedExecutor(vocab_size=VOCAB, memory={"weights": 5, "kv": 7}))

    def memory(name: str, **labels: str) -> float | None:
        return it.metrics.registry.get_sample_value(f"legato:{name}_bytes", labels)

    assert (memory("memory_planned", pool="weights"), memory("memory_planned", pool="kv")) == (5, 7)
    resident = it.metrics.registry.get_sample_value("process_resident_memory_bytes")
    assert resident is not None
    peak, anonymous = memory("process_memory", kind="peak"), memory("process_memory", kind="anonymous")
    assert peak is not None
    assert anonymous is not None
    assert 0 < anonymous <= peak
    available = memory("memory_available")
    assert available is not None
    assert available > 0
