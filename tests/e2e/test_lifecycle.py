"""Failures of the engine (F01), busy is not dead (F02), draining (F03), and metrics."""

import asyncio
import concurrent.futures
import threading
from typing import Any

import httpx
import openai
import pytest
from harness import MODEL, Running, Script, Streamed, assert_error, serving, wait_until

from legato.core.config import EngineConfig, SchedulerConfig, ServerConfig
from legato.core.errors import ConfigError
from legato.engine.assemble import assemble
from legato.server.keys import ApiKeys
from legato.server.lifecycle import bind, serve
from support.byte_level import ASSETS, VOCAB, byte_tokens
from support.scripted import ScriptedExecutor

TALK: Any = [{"role": "user", "content": "hi"}]


def scripted(**knobs: Any) -> ScriptedExecutor:
    script = Script()
    for name in ("one", "two", "three"):
        script.set(name, byte_tokens(f"{name}, and so on"))
    script.set("endless", byte_tokens("x" * 3000))
    return ScriptedExecutor(vocab_size=VOCAB, emit=script, **knobs)


def in_background(server: Running, **body: Any) -> "concurrent.futures.Future[httpx.Response]":
    """Send a request from another thread."""
    future: concurrent.futures.Future[httpx.Response] = concurrent.futures.Future()

    def send() -> None:
        try:
            future.set_result(httpx.post(f"{server.url}/v1/completions", json=body, timeout=30))
        except httpx.HTTPError as error:
            future.set_exception(error)

    threading.Thread(target=send, daemon=True).start()
    return future


def drain(server: Running) -> None:
    server.server.event_loop.call_soon_threadsafe(server.server.drain)


def test_f01_an_engine_failure_ends_every_request_and_health(caplog: pytest.LogCaptureFixture) -> None:
    executor = scripted(num_blocks=1024)
    with serving(executor, scheduler=SchedulerConfig(max_num_seqs=2)) as server:
        body = {"prompt": "endless", "max_tokens": 3000, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            lines = response.iter_lines()
            first = next(lines)
            executor.gate.clear()
            others = [in_background(server, prompt=prompt) for prompt in ("one", "two")]
            wait_until(lambda: server.server.client.num_open == 3)
            executor.failing_steps = {len(executor.plans) - 1, len(executor.plans)}
            executor.gate.set()
            stream = Streamed("\n".join([first, *lines]) + "\n")
        assert not stream.done
        assert "failed as told" in stream.chunks[-1]["error"]["message"]
        assert stream.choices()[0]["finish_reason"] is None
        for other in others:
            assert "failed as told" in assert_error(other.result(30), 503)
        assert_error(server.http.get("/health"), 503)
        assert_error(server.http.get("/ready"), 503)
        assert_error(server.post("/v1/completions", prompt="one"), 503)
        with pytest.raises(openai.InternalServerError):
            server.api.chat.completions.create(model=MODEL, messages=TALK)
        assert server.server.exit_status == 1, "the process will end, so that it is restarted"
    assert "failed as told" in caplog.text


def test_f01_f02_a_step_that_hangs_is_reported_and_one_that_ends_is_forgiven() -> None:
    executor = scripted()
    with serving(executor, stall_timeout=0.05) as server:
        assert server.http.get("/health").status_code == 200
        executor.gate.clear()
        answer = in_background(server, prompt="one")
        wait_until(lambda: server.http.get("/health").status_code == 503)
        assert_error(server.post("/v1/completions", prompt="two"), 503)
        executor.gate.set()
        assert answer.result(30).json()["choices"][0]["text"] == "one, and so on"
        wait_until(lambda: server.http.get("/health").status_code == 200)


def test_p2_a_fault_in_one_row_ends_that_request_only() -> None:
    executor = scripted(faulty=lambda history: list(history[-3:]) == byte_tokens("two"))
    with serving(executor) as server:
        bad = in_background(server, prompt="two")
        assert server.complete("one")["choices"][0]["text"] == "one, and so on"
        assert "NaN" in assert_error(bad.result(30), 500, code="engine_error")
        assert server.http.get("/health").status_code == 200
        server.wait_drained()


def test_f03_draining_lets_running_requests_finish() -> None:
    executor = scripted()
    with serving(executor, scheduler=SchedulerConfig(max_num_seqs=2)) as server:
        executor.gate.clear()
        answers = [in_background(server, prompt=p, stream=p == "one") for p in ("one", "two", "three")]
        wait_until(lambda: server.server.client.num_open == 3)
        drain(server)
        wait_until(lambda: server.http.get("/ready").status_code == 503)
        refused = server.post("/v1/completions", prompt="one")
        assert_error(refused, 503)
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["connection"] == "close"
        assert server.http.get("/health").status_code == 200
        executor.gate.set()
        streamed, *others = [answer.result(30) for answer in answers]
        assert Streamed(streamed.text).choices()[0]["text"] == "one, and so on"
        assert [other.json()["choices"][0]["text"] for other in others] == ["two, and so on", "three, and so on"]
        wait_until(lambda: server.server.should_exit)


def test_f03_what_does_not_finish_in_time_gets_an_error() -> None:
    executor = scripted(num_blocks=1024)
    emit, executor.emit = executor.emit, lambda *args: (threading.Event().wait(0.001), emit(*args))[1]
    with serving(executor, drain_timeout=0.1) as server:
        whole = in_background(server, prompt="endless", max_tokens=3000)
        streamed = in_background(server, prompt="endless", max_tokens=3000, stream=True)
        wait_until(lambda: server.server.client.num_open == 2)
        begun = len(executor.plans)
        wait_until(lambda: len(executor.plans) > begun + 3)  # the stream has had events
        drain(server)
        assert_error(whole.result(30), 503)
        stream = Streamed(streamed.result(30).text)
        assert "shutting down" in stream.chunks[-1]["error"]["message"]


def test_metrics_move() -> None:
    executor = scripted()
    with serving(executor) as server:
        server.complete(["one", "two"], n=2, temperature=1)

        def value(name: str, **labels: str) -> float | None:
            return server.engine.metrics.registry.get_sample_value(
                f"vllm:{name}", {"model_name": MODEL, "engine": "0", **labels}
            )

        wait_until(lambda: value("num_requests_running") == 0)
        tokens = 4 * len("one, and so on.")
        assert value("prompt_tokens_total") == len("onetwo")
        assert value("generation_tokens_total") == tokens
        assert value("request_success_total", finished_reason="stop") == 4
        assert value("time_to_first_token_seconds_count") == 4
        assert value("inter_token_latency_seconds_count") == tokens - 4
        assert value("e2e_request_latency_seconds_count") == 4
        assert value("request_params_n_sum") == 4
        assert value("kv_cache_usage_perc") == 0
        text = server.http.get("/metrics").text
        assert f'vllm:num_requests_waiting{{engine="0",model_name="{MODEL}"}} 0.0' in text
        assert 'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001"' in text


def test_f01_metrics_answer_while_a_step_hangs_and_after_the_engine_has_failed() -> None:
    executor = scripted()
    with serving(executor) as server:

        def value(name: str) -> float:
            lines = server.http.get("/metrics").text.splitlines()
            (line,) = [line for line in lines if line.startswith(f"{name}{{")]
            return float(line.split()[-1])

        assert (value("legato:engine_alive"), value("legato:step_age_seconds")) == (1, 0)
        executor.gate.clear()
        answer = in_background(server, prompt="one")
        wait_until(lambda: value("legato:step_age_seconds") > 0)
        assert value("vllm:num_requests_running") == 1
        executor.failing_steps = {len(executor.plans) - 1}
        executor.gate.set()
        assert_error(answer.result(30), 503)
        assert value("legato:engine_alive") == 0
        assert 'finished_reason="error",model_name="scripted"} 1.0' in server.http.get("/metrics").text


def test_f06_nothing_is_kept_of_requests_that_have_ended() -> None:
    with serving(scripted(), log_requests=True) as server:
        for i in range(40):
            server.complete(["one", "two"], n=2, temperature=1)
            server.post("/v1/completions", prompt="one", temperature=-1)
            with server.http.stream("POST", "/v1/completions", json={"prompt": "endless", "stream": True}) as response:
                assert next(response.iter_lines()), f"request {i} has begun, and is left now"
        server.wait_drained()
        loop, metrics = server.engine.loop, server.engine.metrics
        wait_until(lambda: not (loop._renderer._live or metrics.requests.num_live or loop.busy))
        assert server.server.client._origins == {}


def test_c17_sixty_streams_get_their_own_text_each() -> None:
    script = Script()
    for i in range(60):
        script.set(f"prompt {i};", byte_tokens(f"answer {i} " * (1 + i % 5)))
    with serving(ScriptedExecutor(vocab_size=VOCAB, emit=script, num_blocks=600)) as server:

        async def one(client: openai.AsyncOpenAI, i: int) -> str:
            stream = await client.completions.create(model=MODEL, prompt=f"prompt {i};", max_tokens=100, stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream])

        async def all_of_them() -> list[str]:
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
                return await asyncio.gather(*(one(client, i) for i in range(60)))

        assert asyncio.run(all_of_them()) == [f"answer {i} " * (1 + i % 5) for i in range(60)]
        server.wait_drained()


def test_of_two_servers_that_start_at_once_one_is_refused() -> None:
    """Both can reserve the address before one of them listens."""
    config = ServerConfig(port=0)
    [first] = bind(config)
    port = first.getsockname()[1]
    second = bind(ServerConfig(port=port))
    executor = scripted()
    with first:
        first.listen()
        with pytest.raises(ConfigError, match=f"port {port}"):
            serve(
                assemble(executor, ASSETS, EngineConfig(), MODEL),
                ServerConfig(port=port),
                ApiKeys(),
                second,
                lambda: None,
            )
    assert executor.closed
