"""G09: heads are bounded in bytes and in time, bodies in time."""

import json
import logging
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from harness import Running, Script, Streamed, serving, wait_until

from legato.server import connection, http
from legato.server.connection import MAX_HEAD_BYTES
from support.byte_level import VOCAB, byte_tokens
from support.scripted import ScriptedExecutor

START = b"GET /health HTTP/1.1\r\nhost: x\r\n"
HEADERS = b"host: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n"
BODY_STARTS = b"POST /v1/completions HTTP/1.1\r\n" + HEADERS + b'{"prompt":'


@pytest.fixture
def server() -> Iterator[Running]:
    script = Script()
    script.set("hi", byte_tokens("fine"))
    with serving(ScriptedExecutor(vocab_size=VOCAB, emit=script)) as it:
        yield it
        assert it.complete("hi")["choices"][0]["text"] == "fine"


def connect(server: Running) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def answer(sock: socket.socket) -> tuple[int, str]:
    """Status and error message of all that comes until the connection closes."""
    lines, body = received(sock)
    assert b"content-type: application/json" in lines
    return int(lines[0].split()[1]), json.loads(body)["error"]["message"]


def received(sock: socket.socket) -> tuple[list[bytes], bytes]:
    """Head and body of all that comes until the connection closes."""
    data = b""
    while piece := sock.recv(65536):
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    return head.split(b"\r\n"), body


def choice_of(data: bytes) -> dict[str, Any]:
    choice: dict[str, Any] = json.loads(data)["choices"][0]
    return choice


@pytest.mark.parametrize("filler", [b"a", b"x-many: b\r\n"], ids=["one header", "many headers"])
def test_g09_a_head_that_is_too_large_is_refused(server: Running, filler: bytes) -> None:
    head = START + b"x-first: " + filler * MAX_HEAD_BYTES
    with connect(server) as sock:
        sock.sendall(head[: MAX_HEAD_BYTES + 1])  # just enough, so that nothing is left unread when it closes
        assert answer(sock) == (431, f"the request line and headers are larger than {MAX_HEAD_BYTES} bytes")


def test_g09_the_limit_holds_for_later_requests_of_a_connection(server: Running) -> None:
    with connect(server) as sock:
        sock.sendall(START + b"\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")
        sock.sendall(START)
        sent = 0
        with suppress(OSError):
            while sent < 50 << 20:
                sent += sock.send(b"x" * 65536)
    assert sent < 16 << 20, "what the sockets buffer, not 50 MB"


def test_g09_a_head_that_is_too_slow_is_refused(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.05)
    with connect(server) as silent, connect(server) as slow:
        slow.sendall(START)
        assert answer(slow)[0] == 408
        assert silent.recv(1) == b""


def test_g09_a_body_that_is_too_slow_is_refused(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_TIMEOUT_S", 0.05)
    with connect(server) as slow:
        slow.sendall(BODY_STARTS)
        assert answer(slow) == (408, "the body did not come within 0.05 s")


def test_a_body_that_breaks_off_is_no_fault_of_the_server(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    def counted(status: str) -> float | None:
        labels = {"method": "POST", "status": status, "handler": "/v1/completions"}
        return server.engine.metrics.registry.get_sample_value("http_requests_total", labels)

    with caplog.at_level(logging.WARNING):
        with connect(server) as sock:
            sock.sendall(BODY_STARTS)
            wait_until(lambda: server.server._state.open_requests == 1)
        wait_until(lambda: bool(counted("4xx") or counted("5xx")))
    assert (counted("4xx"), counted("5xx"), caplog.text) == (1, None, "")


@pytest.mark.parametrize("head", [b"", b"connection: keep-alive\r\n"])
@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0_gets_no_chunks_and_ends_with_the_connection(server: Running, stream: bool, head: bytes) -> None:
    body = json.dumps({"prompt": "hi", "stream": stream}).encode()
    head += b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    with connect(server) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.0\r\n" + head + body)
        lines, data = received(sock)
    assert lines[0] == b"HTTP/1.1 200 OK"
    assert b"connection: close" in lines
    assert not any(line.startswith(b"transfer-encoding") for line in lines)
    assert (b"content-length: %d" % len(data) in lines) is not stream
    text = "".join(Streamed(data.decode()).choices()[0]["deltas"]) if stream else choice_of(data)["text"]
    assert text == "fine"


def test_http_1_0_other_answers(server: Running) -> None:
    for request, status in ((b"HEAD /health", 200), (b"GET /v1/models", 200), (b"GET /none", 404)):
        with connect(server) as sock:
            sock.sendall(request + b" HTTP/1.0\r\n\r\n")
            lines, data = received(sock)
        assert int(lines[0].split()[1]) == status
        assert bool(data) is not request.startswith(b"HEAD")


def test_a20_what_is_not_http_gets_the_error_object(server: Running) -> None:
    with connect(server) as sock:
        sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert answer(sock) == (400, "Invalid HTTP request received.")
