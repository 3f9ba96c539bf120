"""OpenTelemetry spans of requests, as a collector gets them."""

import io
import json
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from e2e.harness import MODEL, Running, Script, serving, wait_until
from legato.cli.main import main
from legato.core.errors import ConfigError
from legato.core.grammar import Grammar
from legato.core.types import FinishReason, Request, SamplingParams
from legato.engine.timeline import Timeline
from legato.protocol.responses import Reply
from legato.server import telemetry
from legato.server.context import Origin
from legato.server.logs import JsonFormatter
from legato.server.spans import Spans, check_endpoint, request_attributes
from support.byte_level import VOCAB, byte_level_assets, byte_tokens
from support.collector import Collector, Span, collecting
from support.scripted import ScriptedExecutor
from support.talking import HERMES_TEMPLATE, Saying

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01", "x-request-id": "mine"}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setattr(telemetry, "BATCH_S", 0.0)
    with collecting() as it:
        yield it


def scripted(**knobs: Any) -> ScriptedExecutor:
    script = Script()
    script.set("a secret", byte_tokens("hello"))
    script.set("endless", byte_tokens("x" * 5000))
    return ScriptedExecutor(vocab_size=VOCAB, emit=script, num_blocks=400, max_position=6000, **knobs)


def traced(collector: Collector, executor: ScriptedExecutor | None = None, **config: Any) -> Any:
    return serving(executor or scripted(), otlp_traces_endpoint=collector.url, **config)


def ask(server: Running, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    return server.http.post("/v1/completions", json={"prompt": "a secret", "max_tokens": 9, **body}, headers=headers)


def only(spans: list[Span]) -> Span:
    (span,) = spans
    return span


def test_a_request_is_a_span_with_its_phases(collector: Collector) -> None:
    before = time.time_ns()
    with traced(collector) as server:
        body = {"n": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 3, "stop": ["lo"], "presence_penalty": 1}
        answer = ask(server, PARENT, **body).json()
        wait_until(lambda: bool(collector.roots()))
    span = only(collector.roots())
    assert (span.trace_id, span.parent_id, span.name) == (TRACE, SPAN, f"text_completion {MODEL}")
    assert before <= span.start_ns < span.end_ns <= time.time_ns()
    assert collector.paths == ["/v1/traces"]
    usage = answer["usage"]
    assert span.attributes == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "legato",
        "gen_ai.request.model": MODEL,
        "gen_ai.response.model": MODEL,
        "gen_ai.response.id": answer["id"],
        "gen_ai.response.finish_reasons": ["stop", "stop"],
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 7,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.seed": 3,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.stop_sequences": ["lo"],
        "gen_ai.request.frequency_penalty": 0,
        "gen_ai.request.presence_penalty": 1,
        "legato.request.id": "mine",
        "server.address": "127.0.0.1",
    }
    assert span.resource["service.name"] == "legato"
    parts = sorted(collector.children(span), key=lambda part: part.start_ns)
    assert [part.name for part in parts] == ["queue", "prefill", "decode"]
    assert {part.trace_id for part in parts} == {TRACE}
    edges = [span.start_ns, *(part.end_ns for part in parts)]
    assert [part.start_ns for part in parts] == edges[:3], "one begins where the other ends"
    assert edges == sorted(edges)
    assert edges[-1] == span.end_ns
    assert "secret" not in str(collector.spans)


def test_without_a_parent_a_trace_begins(collector: Collector) -> None:
    with traced(collector) as server:
        ask(server, {"traceparent": f"00-{TRACE}-{'0' * 16}-01"})
        chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True}
        server.http.post("/v1/chat/completions", json=chat)
        wait_until(lambda: len(collector.roots()) == 2)
    first, second = collector.roots()
    assert (first.parent_id, second.parent_id) == ("", "")
    assert len({first.trace_id, second.trace_id, TRACE}) == 3
    assert second.name == f"chat {MODEL}"
    assert second.attributes["gen_ai.request.stream"] is True
    assert 0 < second.attributes["gen_ai.response.time_to_first_chunk"] < 60


def test_a_caller_that_does_not_sample_gets_no_span(collector: Collector) -> None:
    with traced(collector) as server:
        ask(server, {"traceparent": f"00-{TRACE}-{SPAN}-00"})
        ask(server)
        wait_until(lambda: bool(collector.spans))
    assert TRACE not in {span.trace_id for span in collector.spans}


@pytest.mark.parametrize("stream", [False, True])
def test_a23_spans_and_log_lines_have_the_finish_reason_of_the_answer(
    collector: Collector, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assets = byte_level_assets(template=HERMES_TEMPLATE)
    saying = Saying(assets)
    saying.set('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')
    executor = ScriptedExecutor(vocab_size=saying.vocab_size, emit=saying)
    tools = [{"type": "function", "function": {"name": "now"}}]
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": tools, "stream": stream}
    with (
        caplog.at_level(logging.INFO, "legato.server.logs"),
        serving(executor, assets, otlp_traces_endpoint=collector.url, log_requests=True) as server,
    ):
        answer = server.post("/v1/chat/completions", **body)
        assert "tool_calls" in answer.text
        wait_until(lambda: bool(collector.roots()))
    assert only(collector.roots()).attributes["gen_ai.response.finish_reasons"] == ["tool_calls"]
    [line] = [record for record in caplog.records if record.name == "legato.server.logs"]
    assert line.fields["finish_reasons"] == ["tool_calls"]  # type: ignore[attr-defined]


def test_a_beam_search_is_one_span(collector: Collector) -> None:
    with traced(collector) as server:
        answer = ask(server, use_beam_search=True, n=2).json()
        wait_until(lambda: bool(collector.spans))
        assert server.server.client._origins == {}
    span = only(collector.roots())
    assert span.attributes["gen_ai.response.id"] == answer["id"]
    assert span.attributes["gen_ai.response.finish_reasons"] == [each["finish_reason"] for each in answer["choices"]]
    assert [part.name for part in sorted(collector.children(span), key=lambda part: part.start_ns)][:2] == [
        *("queue", "prefill")
    ]


def test_failures_and_aborts_are_told(collector: Collector) -> None:
    executor = scripted(faulty=lambda history: len(history) == 10)
    with traced(collector, executor) as server:
        assert ask(server).status_code == 500
        executor.faulty = None
        body = {"prompt": "endless", "stream": True, "max_tokens": 5000}
        with server.http.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_lines())
        wait_until(lambda: len(collector.roots()) == 2)
    failed, left = collector.roots()
    assert failed.attributes["gen_ai.response.finish_reasons"] == ["error"]
    assert (failed.attributes["error.type"], failed.status) == ("engine_error", 2)
    assert left.attributes["gen_ai.response.finish_reasons"] == ["abort"]
    assert (left.status, "error.type" in left.attributes) == (0, False)


def outcomes(server: Running) -> dict[str, float]:
    registry = server.engine.metrics.registry
    return {
        outcome: registry.get_sample_value("legato:telemetry_requests_total", {"outcome": outcome}) or 0
        for outcome in ("exported", "failed", "dropped")
    }


def test_a_collector_that_hangs_holds_up_nothing_and_drops_are_counted(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "MAX_WAITING", 3)
    collector.gate.clear()
    with traced(collector) as server:
        ask(server)
        wait_until(lambda: bool(collector.paths))  # the telemetry thread waits for the collector now
        for _ in range(8):
            assert ask(server).status_code == 200
        wait_until(lambda: outcomes(server)["dropped"] == 5)
        collector.gate.set()
        wait_until(lambda: outcomes(server)["exported"] == 4)
        assert outcomes(server) == {"exported": 4, "failed": 0, "dropped": 5}
        assert server.server.client._origins == {}


def test_spans_that_are_refused_are_counted(collector: Collector) -> None:
    collector.status = 400
    with traced(collector) as server:
        ask(server)
        wait_until(lambda: outcomes(server)["failed"] == 1)


def test_a_request_that_cannot_be_told_of_does_not_silence_the_next(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, calls = Spans.take, iter([True])

    def take(self: Spans, origin: Origin, timeline: Timeline) -> None:
        if next(calls, False):
            raise ZeroDivisionError
        real(self, origin, timeline)

    monkeypatch.setattr(Spans, "take", take)
    with traced(collector) as server:
        ask(server)
        wait_until(lambda: outcomes(server)["failed"] == 1)
        ask(server)
        wait_until(lambda: outcomes(server)["exported"] == 1)
    assert "telemetry failed" in caplog.text


def test_the_last_spans_are_sent_before_the_server_ends(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "BATCH_S", 60.0)
    with traced(collector) as server:
        ask(server)
    assert len(collector.roots()) == 1


def test_log_lines_carry_the_trace_that_begins(collector: Collector) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    log = logging.getLogger("legato.server.logs")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        with traced(collector, log_requests=True) as server:
            answer = ask(server, {"x-request-id": "mine"}).json()
            wait_until(lambda: bool(collector.roots()))
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert line["trace_id"] == only(collector.roots()).trace_id
    assert (line["request_id"], line["response_id"], line["finish_reasons"]) == ("mine", answer["id"], ["stop"])
    assert (line["prompt_tokens"], line["output_tokens"]) == (8, answer["usage"]["completion_tokens"])
    assert 0 <= line["queue_s"] <= line["first_token_s"] <= line["duration_s"]
    assert line["message"].startswith("request mine ended: stop, 8 + 6 tokens in ")
    assert "secret" not in stream.getvalue()


@pytest.mark.parametrize(("kind", "output"), [("json_schema", "json"), ("json_object", "json"), ("regex", None)])
def test_answers_in_json_are_named(kind: Any, output: str | None) -> None:
    params = SamplingParams(grammar=Grammar(kind, "{}"), seed=1)
    request = Request("id", (1, 2), params, 1.0)
    line = Timeline(request, None, None, 2.0, (0,), (FinishReason.ABORT,), 0, 0, None)
    origin = Origin(None, Reply(chat=True, id="chatcmpl-1", created=0, model="m", fingerprint="f"), False)
    origin.answered.set_result({})
    attributes = request_attributes(origin, line)
    assert attributes.get("gen_ai.output.type") == output
    assert "legato.request.id" not in attributes


@pytest.mark.parametrize("endpoint", ["localhost:4318", "grpc://localhost:4317", "http://", ""])
def test_an_endpoint_that_is_no_url_ends_the_start(endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "0", "--otlp-traces-endpoint", endpoint]) == 2
    assert "otlp_traces_endpoint" in capsys.readouterr().err


def test_paths_of_endpoints_are_kept() -> None:
    assert check_endpoint("http://a:4318") == check_endpoint("http://a:4318/") == "http://a:4318/v1/traces"
    assert check_endpoint("https://a/api/otlp") == "https://a/api/otlp"


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.exporter.otlp.proto.http"])
def test_without_the_package_the_flag_ends_the_start_by_name(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(missing)]:
        monkeypatch.delitem(sys.modules, name)

    class Without:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == missing:
                raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(sys, "meta_path", [Without(), *sys.meta_path])
    with pytest.raises(ConfigError, match=r"otlp_traces_endpoint.*legato\[otel\]"):
        check_endpoint("http://a:4318")
