"""A29: comments keep a silent stream alive, before the first event and between two; nothing else changes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from harness import MODEL, Running, Script, Streamed, assert_error, serving, wait_until

from legato.core.config import SchedulerConfig
from legato.core.types import StepResult
from support.byte_level import VOCAB, byte_tokens
from support.scripted import ScriptedExecutor

COMPLETIONS = "/v1/completions"
INTERVAL = 0.02
COMMENT = ": keep-alive"


class Stepped(ScriptedExecutor):
    """Each step ends when the test allows it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(vocab_size=VOCAB, **options)
        self.allowed = threading.Semaphore(0)

    def collect(self, step_id: int) -> StepResult:
        self.allowed.acquire()
        return super().collect(step_id)


@contextmanager
def stepped(interval: float = INTERVAL, **options: Any) -> Iterator[tuple[Running, Stepped]]:
    script = Script()
    script.set("hi", byte_tokens("fine"))
    script.set("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", byte_tokens("fine"))
    executor = Stepped(emit=script, **options)
    scheduler = SchedulerConfig(max_num_seqs=1, max_num_queued_reqs=1)
    with serving(executor, sse_keep_alive_interval=interval, scheduler=scheduler) as server:
        try:
            yield server, executor
        finally:
            executor.allowed.release(1000)


def until_comment(lines: Iterator[str], count: int = 2) -> list[str]:
    """Lines up to the next `count` comments, without empty ones."""
    seen: list[str] = []
    while seen.count(COMMENT) < count:
        line = next(lines)
        if line:
            seen.append(line)
    return seen


def test_comments_come_before_the_first_event_and_between_two() -> None:
    with stepped() as (server, executor):
        with server.http.stream("POST", COMPLETIONS, json={"prompt": "hi", "stream": True}) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = response.iter_lines()
            seen = until_comment(lines)
            assert seen == [COMMENT] * 2
            executor.allowed.release(2)
            seen += until_comment(lines)
            assert any(line.startswith("data: ") for line in seen)
            executor.allowed.release(100)
            seen += [line for line in lines if line]
        events = [line for line in seen if line != COMMENT]
        stream = Streamed("".join(f"{line}\n\n" for line in events))
        assert stream.done
        assert stream.choices()[0]["text"] == "fine"


def test_the_official_client_skips_them() -> None:
    with stepped() as (server, executor):
        later = threading.Timer(5 * INTERVAL, executor.allowed.release, (100,))
        later.start()
        talk: Any = [{"role": "user", "content": "hi"}]
        chunks = server.api.chat.completions.create(model=MODEL, messages=talk, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "fine"
        later.join()


@pytest.mark.parametrize("stream", [False, True])
def test_without_stream_or_interval_there_are_none(stream: bool) -> None:
    with stepped(interval=0.0 if stream else INTERVAL) as (server, executor):
        later = threading.Timer(5 * INTERVAL, executor.allowed.release, (100,))
        later.start()
        response = server.post(COMPLETIONS, prompt="hi", stream=stream)
        assert response.status_code == 200
        assert COMMENT not in response.text
        later.join()


def test_what_is_wrong_at_once_still_has_a_status() -> None:
    with stepped() as (server, _):
        assert_error(server.post(COMPLETIONS, prompt="", stream=True), 400)
        too_many = server.post(COMPLETIONS, prompt=["hi"] * 2, stream=True)
        assert_error(too_many, 400, param="prompt")


def test_a_failure_after_a_comment_is_an_error_event() -> None:
    with (
        stepped(faulty=lambda history: True) as (server, executor),
        server.http.stream("POST", COMPLETIONS, json={"prompt": "hi", "stream": True}) as response,
    ):
        lines = response.iter_lines()
        until_comment(lines)
        executor.allowed.release(100)
        rest = [line for line in lines if line and line != COMMENT]
        assert len(rest) == 1
        assert "NaN" in rest[0]
        assert '"error"' in rest[0]


def test_a_reader_that_leaves_in_the_silence_ends_its_request() -> None:
    with stepped() as (server, executor):
        with server.http.stream("POST", COMPLETIONS, json={"prompt": "hi", "stream": True}) as response:
            lines = response.iter_lines()
            until_comment(lines)
            assert server.server.client.num_open == 1
        wait_until(lambda: server.server.client.num_open == 0)
        executor.allowed.release(100)
        server.wait_drained()
        assert server.complete("hi")["choices"][0]["text"] == "fine"
