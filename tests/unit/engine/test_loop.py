"""The loop itself."""

import inspect
import sys
import threading
import time

import pytest

from legato.core.config import EngineConfig, SchedulerConfig
from legato.core.errors import LegatoError, QueueFullError
from legato.core.types import FinishReason, Request, SamplingParams, StepResult
from legato.engine.assemble import Engine, assemble
from legato.engine.loop import EngineLoop
from legato.engine.outputs import Output
from support.byte_level import ASSETS, VOCAB, byte_tokens
from support.scripted import ScriptedExecutor


def engine(executor: ScriptedExecutor, **scheduler: int) -> Engine:
    return assemble(executor, ASSETS, EngineConfig(scheduler=SchedulerConfig(**scheduler)), "scripted")


def request(it: Engine, text: str = "a", **params: object) -> Request:
    sampling = SamplingParams(**{"max_tokens": 3, "ignore_eos": True, **params})  # type: ignore[arg-type]
    return it.inputs.request(byte_tokens(text), sampling)


def test_step_is_short() -> None:
    """Two hops from the package to the heart of the engine; it stays readable at a glance."""
    body = inspect.getsource(EngineLoop.step).splitlines()[1:]
    assert len(body) <= 15


def test_outputs_of_a_step_are_published_while_the_next_one_runs() -> None:
    executor = ScriptedExecutor(vocab_size=VOCAB)
    it = engine(executor)
    published: list[int] = []
    it.loop.publish = lambda outputs: published.append(len(executor.plans))
    it.loop.submit([request(it)])
    while it.loop.busy:
        it.loop.step()
    assert published == [2, 3, 3]


def test_the_queue_limit_counts_choices_and_takes_all_or_none() -> None:
    it = engine(ScriptedExecutor(vocab_size=VOCAB), max_num_seqs=1, max_num_queued_reqs=3)
    it.loop.submit([request(it)])
    with pytest.raises(QueueFullError) as caught:
        it.loop.submit([request(it), request(it, n=2)])
    assert caught.value.status == 429
    it.loop.submit([request(it, n=2)])
    it.loop.step()
    it.loop.step()
    assert (it.loop.stats.running, it.loop.stats.waiting) == (1, 2)
    it.loop.submit([request(it)])


def test_p3_waiting_prompts_are_bounded_in_tokens() -> None:
    it = engine(ScriptedExecutor(vocab_size=VOCAB), max_num_seqs=1, max_num_queued_tokens=20)
    it.loop.submit([request(it, "a" * 100)])  # none waits: whatever fits into the context is taken
    it.loop.step()
    it.loop.submit([request(it, "b" * 10)])
    it.loop.submit([request(it, "c" * 5, n=2)])
    for _ in range(2):  # in the inbox, then in the queue
        with pytest.raises(QueueFullError, match="20 prompt tokens are waiting") as caught:
            it.loop.submit([request(it, "d")])
        assert (caught.value.status, caught.value.retry_after_s) == (429, 1.0)
        it.loop.step()
    assert it.loop.stats.waiting_tokens == 20
    it.loop.submit([request(it, "e" * 100)], limit_tokens=False)
    while it.loop.busy:
        it.loop.step()
    assert it.loop.stats.waiting_tokens == 0


def test_prompts_that_wait_are_compact() -> None:
    it = engine(ScriptedExecutor(vocab_size=VOCAB))
    assert sys.getsizeof(request(it, "a" * 1000).prompt) < 5 * 1000


def test_f02_many_short_steps_without_text_are_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long prompts give no text for long: only a step that does not end is a stall."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    executor = ScriptedExecutor(vocab_size=VOCAB, num_blocks=200)
    it = engine(executor, max_num_batched_tokens=16, long_prefill_token_threshold=8)
    collect, stalls, texts = executor.collect, list[float](), list[str]()

    def slow(step_id: int) -> StepResult:
        nonlocal now
        now += 4
        stalls.append(it.loop.stalled_s())
        return collect(step_id)

    executor.collect = slow  # type: ignore[method-assign]
    it.loop.publish = lambda outputs: texts.extend(output.text for output in outputs)
    it.loop.submit([request(it, letter * 200, max_tokens=1) for letter in "ab"])
    thread = threading.Thread(target=it.loop.run)
    thread.start()
    while not any(texts):
        time.sleep(0.001)
    it.loop.stop()
    thread.join(20)
    assert now > 1000 + 20 * 4, "no text came for far longer than a step may last"
    assert max(stalls) <= 4
    assert it.loop.stalled_s() == 0


def test_stop_ends_what_runs_and_refuses_what_comes() -> None:
    executor = ScriptedExecutor(vocab_size=VOCAB, num_blocks=600, max_position=8192)
    it = engine(executor)
    outputs: list[Output] = []
    it.loop.publish = outputs.extend
    thread = threading.Thread(target=it.loop.run)
    it.loop.submit([request(it, max_tokens=8000)])
    thread.start()
    it.loop.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert outputs[-1].finish is FinishReason.ERROR
    with pytest.raises(QueueFullError) as caught:
        it.loop.submit([request(it)])
    assert caught.value.status == 503


def test_requests_that_came_too_late_are_counted_as_errors() -> None:
    it = engine(ScriptedExecutor(vocab_size=VOCAB))
    outputs: list[Output] = []
    it.loop.publish = outputs.extend
    it.loop.submit([request(it, n=2)])
    it.loop.stop()
    it.loop.run()
    assert [(output.choice, output.finish) for output in outputs] == [(c, FinishReason.ERROR) for c in (0, 1)]
    assert 'finished_reason="error",model_name="scripted"} 2.0' in it.metrics.text().decode()


def test_warm_up_leaves_no_trace_and_says_when_the_model_is_broken() -> None:
    it = engine(ScriptedExecutor(vocab_size=VOCAB))
    it.loop.warm_up()
    assert not it.loop.busy
    it.loop.step()
    assert it.loop.stats.prefix_queries == 0
    broken = engine(ScriptedExecutor(vocab_size=VOCAB, faulty=lambda history: True))
    with pytest.raises(LegatoError, match="does not compute"):
        broken.loop.warm_up()
