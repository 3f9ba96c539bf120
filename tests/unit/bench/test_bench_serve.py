"""The load generator against a server that follows a script: what is counted, and what is said (CASES I02 to I08)."""

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from legato.bench.client import Endpoint, Record
from legato.bench.datasets import Sample
from legato.bench.figures import evaluate
from legato.bench.load import Plan, Run, run
from legato.cli.main import main
from support.scripted_server import Answer, Script, scripted_server


def load(url: str, count: int, *, times: list[float] | None = None, chat: bool = False, **plan: Any) -> Run:
    path = "/v1/chat/completions" if chat else "/v1/completions"
    endpoint = Endpoint.parse(url, path, {}, chat=chat)
    samples = [Sample((1, 2, 3), 3)] * count
    whole = Plan(endpoint=endpoint, model="m", samples=samples, times=times or [0.0] * count, extra={}, **plan)
    return run(whole)


def serve(script: Script, *arguments: str) -> int:
    with scripted_server(script) as server:
        return main(["bench", "serve", "--base-url", server.url, "--random-input-len", "8", *arguments])


BAD = {
    "HTTP 503": Answer(status=503),
    "error event": Answer(end="error"),
    "empty stream": Answer(chunks=()),
    "broken stream": Answer(end="cut"),
    "timeout": Answer(end="hang"),
}


def half_bad(index: int, body: dict[str, Any]) -> Answer:
    """Of each ten, four are one kind of failure."""
    return Answer() if index % 10 < 6 else list(BAD.values())[index // 10]


def test_i02_failures_are_counted_by_kind_and_are_in_no_latency() -> None:
    with scripted_server(half_bad) as server:
        result = load(server.url, 50, max_concurrency=1, timeout_s=0.5)
    figures = evaluate(result, goodput={"ttft": math.inf})
    assert figures.completed == 30
    assert figures.failed == dict.fromkeys(BAD, 4)
    assert figures.failure_rate == 0.4
    assert figures.output_tokens == 90
    assert all(len(figures.latencies[name]) == 30 for name in ("ttft", "tpot", "e2el"))
    assert min(figures.latencies["ttft"]) > 0
    assert figures.goodput_per_s == pytest.approx(30 / result.duration_s)


@pytest.mark.parametrize(("first", "error"), [([1], "broken stream"), ("x", "broken stream"), ({"error": None}, "")])
def test_i02_an_event_that_is_no_object_is_a_failure_and_no_error_is_none(first: object, error: str) -> None:
    with scripted_server(lambda index, body: Answer(first=first)) as server:
        [record] = load(server.url, 1).records
    assert record.error == error


def test_i02_a_server_that_is_not_there_is_a_failure_too(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(half_bad) as server:
        url = server.url
    [record] = load(url, 1).records
    assert record.error == "connection"
    assert main(["bench", "serve", "m", "--base-url", url, "--num-prompts", "2"]) == 1
    assert "no request succeeded" in capsys.readouterr().err


@pytest.mark.parametrize(("flags", "status"), [((), 0), (("--fail-on-errors",), 1)])
def test_i02_the_exit_status_tells_of_failures_if_asked(
    flags: tuple[str, ...], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def script(index: int, body: dict[str, Any]) -> Answer:
        return Answer(status=503) if index == 0 else Answer()

    assert serve(script, "--num-prompts", "4", *flags) == status
    said = capsys.readouterr()
    assert "1 (25.0%)" in said.out
    assert "1 x HTTP 503" in said.err


def test_i02_each_kind_of_failure_is_printed_with_its_count(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = ["HTTP 503", "HTTP 503", "error event", "empty stream", "broken stream"]
    bad = [BAD[kind] for kind in kinds]
    assert serve(lambda index, body: bad[index] if index < 5 else Answer(), "--num-prompts", "8") == 0
    counts = dict(re.findall(r"^  (\w.*?) +(\d+)$", capsys.readouterr().out, re.MULTILINE))
    assert counts == {"HTTP 503": "2", "error event": "1", "empty stream": "1", "broken stream": "1"}


@pytest.mark.parametrize("chat", [False, True])
def test_i03_tokens_come_from_usage_and_the_peak_is_no_less_than_the_average(chat: bool) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 100}
    with scripted_server(lambda index, body: Answer(("abcd",) * 25, usage)) as server:
        result = load(server.url, 4, chat=chat)
    figures = evaluate(result, goodput={})
    assert all(len(record.chunks) == 25 for record in result.records)  # without the role that opens a chat
    assert figures.output_tokens == 400
    assert figures.peak_output_per_s >= figures.output_tokens / figures.duration_s
    assert len(figures.latencies["itl"]) == 4 * 24
    for record, tpot in zip(result.records, figures.latencies["tpot"], strict=True):
        assert tpot == pytest.approx(1000 * (record.chunks[-1] - record.chunks[0]) / 99)
    assert not any("usage" in note for note in figures.notes)


def test_i03_without_usage_the_chunks_are_counted_and_it_is_said() -> None:
    with scripted_server(lambda index, body: Answer(usage=None)) as server:
        figures = evaluate(load(server.url, 2), goodput={})
    assert figures.output_tokens == 6
    assert "without usage" in figures.notes[0]


def test_i03_chunk_gaps_are_labelled_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(lambda index, body: Answer(), "--num-prompts", "2") == 0
    assert "ITL (chunk gaps)" in capsys.readouterr().out


def test_i05_latency_counts_from_the_planned_time_and_the_lag_is_shown() -> None:
    """One at a time, all due long before the last is sent: whatever each takes, the next waits for it."""
    times = [i * 1e-6 for i in range(8)]
    with scripted_server(lambda index, body: Answer()) as server:
        result = load(server.url, 8, times=times, max_concurrency=1)
    records = sorted(result.records, key=lambda record: record.sent_s)
    assert all(b.sent_s >= a.ended_s for a, b in itertools.pairwise(records))
    assert [record.planned_s - result.started_s for record in result.records] == pytest.approx(times, abs=1e-9)
    figures = evaluate(result, goodput={})
    for record, value in zip(result.records, figures.latencies["e2el_from_plan"], strict=True):
        assert value == pytest.approx(1000 * (record.chunks[-1] - record.planned_s))
    assert sum(figures.latencies["send_lag"]) > 0.01 * sum(figures.latencies["e2el"])
    assert any("waited in the client" in note for note in figures.notes)


@pytest.mark.parametrize(("lag_s", "warned"), [(0.009, False), (0.011, True)])
def test_i05_a_lag_of_more_than_a_hundredth_is_warned_of(lag_s: float, warned: bool) -> None:
    record = Record(1.0, 1, 1.0 + lag_s, [1.5 + lag_s, 2.0 + lag_s], 2.0 + lag_s, 1, 2, None, True)
    notes = evaluate(Run([record], 0.0, 3.0, 0.0, 0), goodput={}).notes
    assert any("waited in the client" in note for note in notes) == warned


def test_i05_both_latencies_are_printed_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(lambda *_: Answer(), "--num-prompts", "8", "--request-rate", "1e6", "--max-concurrency", "1") == 0
    out = capsys.readouterr().out
    assert all(f"\n{label} " in out for label in ("TTFT", "E2EL", "send lag", "TTFT from plan", "E2EL from plan"))
    assert "waited in the client" in out


def test_i06_seeds_are_fresh_and_the_hit_rate_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    with scripted_server(lambda index, body: Answer(usage=usage)) as server:
        arguments = ["bench", "serve", "--base-url", server.url, "--random-input-len", "40", "--num-prompts", "3"]
        for seed in ([], [], ["--seed", "7"], ["--seed", "7"]):
            assert main([*arguments, *seed]) == 0
    prompts = [tuple(body["prompt"]) for body in server.bodies]
    assert len(set(prompts[:6])) == 6
    assert prompts[6:9] == prompts[9:]
    assert "40.0%" in capsys.readouterr().out


def test_i06_warm_ups_share_no_prompt_and_are_in_no_figure(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    with scripted_server(lambda index, body: Answer()) as server:
        arguments = ["--num-prompts", "3", "--num-warmups", "2", "--random-input-len", "40", "--json", str(file)]
        assert main(["bench", "serve", "--base-url", server.url, *arguments]) == 0
    assert len({tuple(body["prompt"]) for body in server.bodies}) == 5
    written = json.loads(file.read_text())
    assert written["results"]["completed"] == 3
    assert written["results"]["cache_hit_rate"] is None
    assert written["flags"]["num_warmups"] == 2
    assert {"machine", "commit", "seed", "legato", "command"} <= set(written)


def test_reports_do_not_hold_the_values_of_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / "out.json", tmp_path / "out.html"]
    with scripted_server(lambda index, body: Answer()) as server:
        sent = ["--header", "authorization=Bearer open-sesame", "x-note=a", "--num-prompts", "1"]
        arguments = [
            "bench",
            "serve",
            *sent,
            "--base-url",
            server.url,
            "--json",
            str(files[0]),
            "--html",
            str(files[1]),
        ]
        monkeypatch.setattr("sys.argv", ["legato", *arguments])
        assert main(arguments) == 0
    written = [file.read_text() for file in files]
    assert not any("open-sesame" in text for text in written)
    assert json.loads(written[0])["flags"]["header"] == ["authorization=***", "x-note=***"]
    assert "authorization=***" in json.loads(written[0])["command"]


def test_i08_the_start_of_a_closed_loop_is_stated() -> None:
    def record(index: int) -> Record:
        first = index < 4  # the cohort that starts at once waits ten times as long
        sent, ttft = index * 1.0, 1.0 if first else 0.1
        return Record(0.0, 1, sent, [sent + ttft], sent + ttft, 1, 1, None, True)

    whole = Run([record(i) for i in range(40)], 0.0, 50.0, 0.1, 0)
    [note] = evaluate(whole, goodput={}, first_cohort=4).notes
    assert "the first 4 requests started at once" in note
    assert "1000.0 ms with those first ones and 100.0 ms without" in note


def test_i08_the_command_says_that_it_was_a_closed_loop(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(lambda index, body: Answer(), "--num-prompts", "6", "--max-concurrency", "2") == 0
    out = capsys.readouterr().out
    assert "closed loop, at most 2 at once" in out
    assert "the first 2 requests started at once" in out


def test_goodput_asks_for_all_bounds() -> None:
    """Three requests: quick, slow to start, slow to go on. One-token answers have a TPOT of 0."""

    def record(first: float, last: float, tokens: int) -> Record:
        return Record(0.0, tokens, 0.0, [first, last], last, 1, tokens, None, True)

    whole = Run([record(0.1, 0.2, 11), record(0.5, 0.6, 11), record(0.1, 9.1, 11), record(0.1, 0.1, 1)], 0, 10, 0, 0)
    assert evaluate(whole, goodput={}).goodput_per_s is None
    assert evaluate(whole, goodput={"ttft": 200}).goodput_per_s == 0.3
    assert evaluate(whole, goodput={"ttft": 200, "tpot": 20}).goodput_per_s == 0.2
    assert evaluate(whole, goodput={"e2el": 1000}).goodput_per_s == 0.3


def test_bodies_ask_for_a_stream_with_usage() -> None:
    with scripted_server(lambda index, body: Answer()) as server:
        arguments = ["--num-prompts", "1", "--ignore-eos", "--extra-body", '{"top_k": 3}', "--random-output-len", "5"]
        assert main(["bench", "serve", "--base-url", server.url, "--backend", "openai-chat", *arguments]) == 0
    [body] = server.bodies
    [message] = body.pop("messages")
    assert message["role"] == "user"
    assert len(message["content"].split()) == 1024
    assert body == {
        "model": "scripted",
        "max_completion_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
        "ignore_eos": True,
        "top_k": 3,
    }


def test_the_html_report_stands_alone(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    assert serve(half_bad, "--num-prompts", "8", "--html", str(file)) == 0
    text = file.read_text()
    assert text.count("<svg") == 5
    for word in ("http://", "https://", "<script", "<link", "url("):
        assert word not in text.replace("--base-url http://127.0.0.1", "").replace("base_url http://127.0.0.1", "")
    assert "HTTP 503" in text


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--dataset-name", "nothing"), "dataset"),
        (("--dataset-name", "sharegpt"), "--dataset-path"),
        (("--goodput", "ttft"), "goodput"),
        (("--goodput", "itl:3"), "goodput"),
        (("--request-rate", "0"), "request-rate"),
        (("--max-concurrency", "0"), "max_concurrency"),
        (("--header", "x"), "header"),
        (("--header", "x=a\r\nb: c"), "header"),
        (("--extra-body", "[1]"), "extra-body"),
        (("--base-url", "nowhere"), "base-url"),
        (("--vocab-size", "5"), "vocab-size"),
    ],
)
def test_a_bad_flag_ends_the_start_by_name(
    arguments: tuple[str, ...], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", "m", *arguments]) == 2
    assert word in capsys.readouterr().err
