"""Structured logs: one JSON object per line, with the request's ids, without its text."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.harness import Running, serving
from legato.server.logs import JsonFormatter, set_up_logging
from support.byte_level import VOCAB
from support.scripted import AnswerAll, ScriptedExecutor

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger; all is as before afterwards."""
    root, access = logging.getLogger(), logging.getLogger("uvicorn.access")
    quiet = [logging.getLogger(name) for name in ("asyncio", "uvicorn.error")]
    before = root.handlers[:], root.level, access.filters[:], [each.level for each in quiet]
    yield root
    root.handlers[:], level, access.filters[:], levels = before
    root.setLevel(level)
    for each, level in zip(quiet, levels, strict=True):
        each.setLevel(level)


@pytest.fixture
def lines(root: logging.Logger) -> "Lines":
    set_up_logging("info", "json")
    handler = root.handlers[-1]
    assert isinstance(handler, logging.StreamHandler)
    stream = io.StringIO()
    handler.setStream(stream)
    return Lines(stream)


class Lines:
    def __init__(self, stream: io.StringIO) -> None:
        self._stream = stream

    def read(self) -> list[dict[str, Any]]:
        """What the server said; the tests' own client logs too."""
        lines = [json.loads(line) for line in self._stream.getvalue().splitlines()]
        return [line for line in lines if line["logger"] != "httpx"]


def scripted() -> ScriptedExecutor:
    return ScriptedExecutor(vocab_size=VOCAB, emit=AnswerAll([10, 11, 12], then=2))


def ask(server: Running, **headers: str) -> None:
    body = {"prompt": "a secret prompt", "max_tokens": 3}
    assert server.http.post("/v1/completions?key=secret", json=body, headers=headers).status_code == 200


def test_a_request_is_one_line_with_its_ids(lines: "Lines") -> None:
    with serving(scripted()) as server:
        ask(server, **{"x-request-id": "mine", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"})
        server.http.get("/health")
        server.http.get("/v1/nothing", headers={"x-request-id": "other"})
    access = [line for line in lines.read() if line["logger"] == "uvicorn.access"]
    assert [line["path"] for line in access] == ["/v1/completions", "/v1/nothing"], "probes leave no line"
    first, second = access
    assert first["message"] == "POST /v1/completions 200"
    assert (first["request_id"], first["trace_id"], first["status"]) == ("mine", TRACE, 200)
    assert first["time"].endswith("+00:00")
    assert (second["request_id"], second["status"], second["level"]) == ("other", 404, "info")
    assert "trace_id" not in second
    assert "secret" not in json.dumps(lines.read())


def test_an_unexpected_exception_is_one_line(lines: "Lines", monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(scripted()) as server:

        def fail(*args: object) -> None:
            raise ZeroDivisionError("by nought")

        monkeypatch.setattr(server.server._state, "completion", fail)
        answer = server.http.post("/v1/completions", json={"prompt": "a"}, headers={"x-request-id": "bad"})
        assert answer.status_code == 500
    (line,) = [line for line in lines.read() if line["level"] == "error"]
    assert line["request_id"] == "bad"
    assert "ZeroDivisionError: by nought" in line["exception"]


def test_text_lines_stay_as_people_read_them(root: logging.Logger) -> None:
    set_up_logging("warning", "text")
    handler = root.handlers[-1]
    record = logging.LogRecord("legato", logging.WARNING, "", 1, "it is %s", ("late",), None)
    assert handler.format(record).endswith(" WARNING it is late")
    assert root.level == logging.WARNING


def test_fields_of_an_event_are_keys() -> None:
    record = logging.LogRecord("legato", logging.INFO, "", 1, "done\nat last", (), None)
    record.fields = {"tokens": 3}
    text = JsonFormatter().format(record)
    assert "\n" not in text
    assert json.loads(text)["tokens"] == 3
