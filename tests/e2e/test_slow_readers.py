"""A client that does not read its stream: what waits for it is bounded, and then its request ends."""

import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest
from harness import Running, Script, serving, wait_until

from legato.core.types import SlotReset
from legato.engine import client
from legato.server import connection
from support.byte_level import VOCAB, byte_tokens
from support.scripted import ScriptedExecutor


@pytest.fixture
def server() -> Iterator[Running]:
    script = Script()
    script.set("hi", byte_tokens("fine"))
    [more] = byte_tokens("x")

    def emit(history: Sequence[int], params: SlotReset, seen: Sequence[int]) -> int:
        return more if params.num_logprobs > 0 else script(history, params, seen)

    executor = ScriptedExecutor(vocab_size=VOCAB, emit=emit, num_blocks=2048, max_position=32_000)
    with serving(executor) as it:
        yield it
        assert it.complete("hi")["choices"][0]["text"] == "fine"
        it.wait_drained()


def send(server: Running) -> socket.socket:
    """A stream of many megabytes whose client has little room for it, and reads nothing."""
    host, port = server.url.removeprefix("http://").split(":")
    body = {"prompt": "endless", "max_tokens": 20_000, "stream": True, "logprobs": 20}
    data = json.dumps(body).encode()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(20)
    sock.connect((host, int(port)))
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    sock.sendall(f"{head}\r\n\r\n".encode() + data)
    return sock


def read_all(sock: socket.socket) -> bytes:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    data = b""
    while piece := sock.recv(1 << 20):
        data += piece
        if data.endswith(b"0\r\n\r\n"):
            break
    return data


def test_what_waits_is_bounded(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "MAX_UNREAD", 256)
    with send(server) as sock:
        wait_until(lambda: "does not read its answer" in caplog.text)
        server.wait_drained()
        end = read_all(sock)[-2000:]
        assert b"the answer was not read as fast as it came" in end
        assert b"[DONE]" not in end


def test_a_reader_that_takes_nothing_is_cut_off(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "READ_TIMEOUT_S", 0.05)
    with send(server) as sock:
        wait_until(lambda: "the connection is cut" in caplog.text)
        server.wait_drained()
        with suppress(ConnectionResetError):
            assert not read_all(sock).endswith(b"0\r\n\r\n")
