"""The offline API over a scripted executor."""

import copy
import math
import threading
from collections.abc import Sized
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from harness import MODEL, Script

from legato.core.config import EngineConfig, SchedulerConfig
from legato.core.errors import LegatoError, QueueFullError, RequestError
from legato.core.types import Request, SamplingParams, Service
from legato.engine.assemble import assemble
from legato.engine.llm import LLM
from support.byte_level import ASSETS, VOCAB, byte_tokens
from support.no_threads import refuse_threads
from support.scripted import ScriptedExecutor

GREEDY = SamplingParams(max_tokens=30, temperature=0)
TALK: Any = [{"role": "user", "content": "hi"}]


def scripted() -> ScriptedExecutor:
    script = Script()
    for name in ("one", "two", "three"):
        script.set(name, byte_tokens(f"{name}, and so on"))
    return ScriptedExecutor(vocab_size=VOCAB, emit=script)


def offline(executor: ScriptedExecutor, **scheduler: Any) -> LLM:
    return LLM.over(assemble(executor, ASSETS, EngineConfig(scheduler=SchedulerConfig(**scheduler)), MODEL))


def test_offline_results_come_in_the_order_of_the_prompts() -> None:
    with offline(scripted(), max_num_seqs=2, max_num_queued_reqs=1) as llm:
        names = ["three", "one", "two"] * 5
        first = llm.generate(names, SamplingParams(max_tokens=30, temperature=0))
        assert [result.outputs[0].text for result in first] == [f"{name}, and so on" for name in names]
        assert [result.prompt for result in first] == names
        kept = first[0].outputs[0].text
        second = llm.generate({"prompt_token_ids": byte_tokens("two")}, SamplingParams(max_tokens=3, logprobs=2))
        assert second[0].outputs[0].finish_reason == "length"
        assert second[0].outputs[0].token_ids == byte_tokens("two")
        assert first[0].outputs[0].text == kept, "what was handed out never changes"
        logprobs = second[0].outputs[0].logprobs
        assert logprobs is not None
        assert [set(each) >= {token} for each, token in zip(logprobs, second[0].outputs[0].token_ids, strict=True)]
        total = second[0].outputs[0].cumulative_logprob
        assert total is not None
        assert math.isclose(total, sum(e[t].logprob for e, t in zip(logprobs, byte_tokens("two"), strict=True)))


def test_c17_results_belong_to_their_call_and_what_was_handed_out_never_changes() -> None:
    with offline(scripted(), max_num_seqs=2) as llm, ThreadPoolExecutor(3) as pool:
        names = ["one", "two", "three"] * 4
        calls = [pool.submit(llm.generate, [name] * 3, GREEDY, use_tqdm=False) for name in names]
        for name, call in zip(names, calls, strict=True):
            assert [result.outputs[0].text for result in call.result(60)] == [f"{name}, and so on"] * 3
        kept = [(piece, copy.deepcopy(piece)) for piece in llm.stream("one", GREEDY)]
        llm.generate(names, GREEDY, use_tqdm=False)
        assert all(piece == as_it_was for piece, as_it_was in kept)


def test_offline_scores_of_the_prompt_and_of_chosen_ids() -> None:
    with offline(scripted()) as llm:
        params = SamplingParams(max_tokens=0, prompt_logprobs=2)
        [scored] = llm.generate("one", params)
        assert (scored.outputs[0].token_ids, scored.outputs[0].finish_reason) == ([], "length")
        first, *rest = scored.prompt_logprobs or ()
        assert first is None
        for token, found in zip(scored.prompt_token_ids[1:], rest, strict=True):
            assert found is not None
            assert found[token].logprob == -0.125 * (token % 8)
            assert {id: each.rank for id, each in found.items() if id != token} == {0: 1, 1: 2}
        [watched] = llm.generate("one", SamplingParams(max_tokens=2, logprobs=1, logprob_token_ids=(0, 7)))
        assert watched.prompt_logprobs is None
        for found in watched.outputs[0].logprobs or ():
            assert {id: found[id].rank for id in (0, 7)} == {0: 1, 7: None}


def test_offline_prefilled_answers_and_templates() -> None:
    with offline(scripted()) as llm:
        talk = [*TALK, {"role": "assistant", "content": "It is "}]
        params = SamplingParams(max_tokens=1)
        more: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
        [result] = llm.chat(talk, params, **more)
        assert llm.get_tokenizer().decode(result.prompt_token_ids).endswith("assistant\nIt is ")
        [result] = llm.chat(talk, params, chat_template="{{ messages[0].content }}")
        assert result.prompt_token_ids == byte_tokens("hi")
        with pytest.raises(RequestError, match="add_generation_prompt"):
            llm.chat(talk, params, continue_final_message=True)


def test_bad_words_are_encoded_with_and_without_a_space() -> None:
    executor = scripted()
    with offline(executor) as llm:
        llm.generate("one", SamplingParams(max_tokens=2, bad_words=("ab", " ab", "c")))
        words = executor.plans[0].resets[0].bad_words
        assert [list(word) for word in words] == [byte_tokens(text) for text in ("ab", " ab", "c", " c")]
        with pytest.raises(RequestError, match="65 tokens"):
            llm.generate("one", SamplingParams(bad_words=("é?" * 21 + "é",)))


def test_offline_errors_come_before_anything_runs() -> None:
    executor = scripted()
    with offline(executor) as llm:
        with pytest.raises(RequestError, match="temperature"):
            llm.generate(["one", "two"], [SamplingParams(), SamplingParams(temperature=-1)])
        with pytest.raises(RequestError, match="sampling_params"):
            llm.generate(["one", "two"], [SamplingParams()])
        assert executor.plans == []
        assert llm.chat(TALK, SamplingParams(max_tokens=5))[0].outputs[0].finish_reason == "stop"


@pytest.mark.parametrize("stop_at", [1, 5, 15])
def test_offline_stream_that_is_left_is_aborted(stop_at: int) -> None:
    """Also when it is left at its last output."""
    executor = scripted()
    with offline(executor) as llm:
        outputs = llm.stream("one", SamplingParams(max_tokens=30))
        seen = [next(outputs) for _ in range(stop_at)]
        assert (seen[-1].finish is not None) == (stop_at == len("one, and so on") + 1)
        outputs.close()
        assert llm.generate("two", SamplingParams(max_tokens=30))[0].outputs[0].text == "two, and so on"


def test_offline_an_engine_failure_is_raised() -> None:
    executor = scripted()
    executor.failing_steps = {2}
    with offline(executor) as llm:
        for _ in range(2):
            with pytest.raises(LegatoError, match="step 2 failed as told"):
                llm.generate(["one", "two"], SamplingParams(max_tokens=30))


def test_offline_where_there_are_no_more_threads_the_engine_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = scripted()
    refuse_threads(monkeypatch, "legato-engine")
    with pytest.raises(LegatoError, match="cannot start the thread legato-engine"):
        offline(executor)
    assert executor.closed


class Watched(threading.Condition):
    """Notes how many messages wait each time that the thread which made it lets go."""

    def __init__(self, inbox: Sized) -> None:
        super().__init__()
        self.inbox, self.seen = inbox, list[int]()
        self.watched, self.depth = threading.get_ident(), 0

    def __enter__(self) -> bool:
        entered = super().__enter__()
        self.depth += self.watched == threading.get_ident()
        return entered

    def __exit__(self, *error: Any) -> None:
        if self.watched == threading.get_ident():
            self.depth -= 1
            if self.depth == 0:
                self.seen.append(len(self.inbox))
        super().__exit__(*error)


def test_offline_a_batch_enters_the_queue_as_one() -> None:
    """No step comes between its requests: how many steps a batch takes depends on nothing but the batch."""
    engine = assemble(scripted(), ASSETS, EngineConfig(scheduler=SchedulerConfig(max_num_seqs=2)), MODEL)
    engine.loop._wake = wake = Watched(engine.loop._inbox)
    with LLM.over(engine) as llm:
        llm.generate(["one", "two", "three", "one", "two"], GREEDY, use_tqdm=False)
    assert wake.seen[0] == 5


def test_offline_choices_wait_until_the_queue_has_room_for_them() -> None:
    executor = scripted()
    with offline(executor, max_num_seqs=2, max_num_queued_reqs=4) as llm:
        each = [SamplingParams(n=n, max_tokens=30, temperature=1) for n in (1, 2, 4, 3)]
        found = llm.generate(["one", "two", "three", "one"], each, use_tqdm=False)
        assert [answer.error for result in found for answer in result.outputs] == [None] * 10
        steps = len(executor.plans)
        with pytest.raises(RequestError, match="5 choices at once, but the queue holds 4"):
            llm.generate(["one", "two"], [GREEDY, SamplingParams(n=5, temperature=1)], use_tqdm=False)
        assert len(executor.plans) == steps, "before anything runs"


def test_tools_reach_the_prompt() -> None:
    with offline(scripted()) as llm:
        tools = [{"type": "function", "function": {"name": "get_weather"}}]
        [result] = llm.chat(TALK, SamplingParams(max_tokens=1), tools=tools)
        prompt = llm.get_tokenizer().decode(result.prompt_token_ids)
        assert '{"name": "get_weather"}' in prompt


def test_offline_priorities_and_targets_reach_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["one", "two", "three"]
    services: list[Service] = []

    def watch(llm: LLM) -> None:
        submit = llm._engine.loop.submit
        services.clear()

        def watched(requests: list[Request], **more: Any) -> None:
            services.extend(request.service for request in requests)
            submit(requests, **more)

        monkeypatch.setattr(llm._engine.loop, "submit", watched)

    with offline(scripted(), policy="priority") as llm:
        watch(llm)
        assert [r.outputs[0].text for r in llm.generate(names, GREEDY, priority=[3, -1, 0])][2] == "three, and so on"
        llm.chat(TALK, GREEDY, priority=7)
        assert [service.priority for service in services] == [3, -1, 0, 7]
        for wrong in ([1], [1, 2, 3, 4]):
            with pytest.raises(RequestError) as caught:
                llm.generate(names, GREEDY, priority=wrong)
            assert caught.value.param == "priority"
    with offline(scripted()) as llm, pytest.raises(RequestError) as caught:
        llm.generate(names, GREEDY, priority=1)
    assert caught.value.param == "priority", "refused where no policy reads it"
    with offline(scripted(), policy="deadline") as llm:
        watch(llm)
        llm.generate(names, GREEDY, ttft_target_ms=60_000, e2e_target_ms=[70_000, 80_000, 90_000])
        assert [(service.ttft_s, service.e2e_s) for service in services] == [(60, 70), (60, 80), (60, 90)]


def test_offline_what_would_be_too_late_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with offline(scripted(), policy="deadline") as llm:
        judge = llm._engine.loop._scheduler.judge

        def late(request: Request, ahead: Any) -> None:
            if request.service.ttft_s == 1:
                raise QueueFullError("too late")
            judge(request, ahead)

        monkeypatch.setattr(llm._engine.loop._scheduler, "judge", late)
        found = llm.generate(["one", "two", "three"], GREEDY, ttft_target_ms=[60_000, 1_000, 60_000])
        ends = [(each.outputs[0].finish_reason, each.outputs[0].error, each.finished) for each in found]
        assert ends == [("stop", None, True), ("error", "too late", True), ("stop", None, True)]
