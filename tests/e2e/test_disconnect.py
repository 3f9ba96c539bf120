"""A22: when the client goes away, the work stops within a step or two, whatever state it was in."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from harness import Running, Script, serving, wait_until

from legato.core.config import SchedulerConfig
from support.byte_level import VOCAB, byte_tokens
from support.scripted import ScriptedExecutor

ENDLESS = byte_tokens("abcdefgh" * 500)


@pytest.fixture
def executor() -> ScriptedExecutor:
    script = Script()
    for prompt in ("one", "two", "long " * 40):
        script.set(prompt, ENDLESS)
    return ScriptedExecutor(vocab_size=VOCAB, emit=script, num_blocks=1024, max_position=8192)


@pytest.fixture
def server(executor: ScriptedExecutor) -> Iterator[Running]:
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16, long_prefill_token_threshold=8)
    with serving(executor, scheduler=config) as it:
        yield it
        it.wait_drained()  # oracle 5


def send(server: Running, **body: Any) -> socket.socket:
    """A request whose connection can be cut at will."""
    host, port = server.url.removeprefix("http://").split(":")
    data = json.dumps({"max_tokens": 3000, **body}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    )
    sock = socket.create_connection((host, int(port)), timeout=20)
    sock.sendall(head.encode() + b"\r\n" + data)
    return sock


def cut_while_a_step_runs(server: Running, executor: ScriptedExecutor, sock: socket.socket) -> int:
    """Close the connection in the middle of a step; returns how many steps had begun when the server knew."""
    executor.gate.clear()
    sock.close()
    wait_until(lambda: server.server.client.num_open == 0)
    begun = len(executor.plans)
    executor.gate.set()
    server.wait_drained()
    return begun


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 4])
def test_a22_while_decoding(server: Running, executor: ScriptedExecutor, stream: bool, n: int) -> None:
    sock = send(server, prompt="one", stream=stream, n=n)
    wait_until(lambda: len(executor.plans) > 5)
    begun = cut_while_a_step_runs(server, executor, sock)
    assert len(executor.plans) <= begun + 2


@pytest.mark.parametrize("stream", [True, False])
def test_a22_during_prefill(server: Running, executor: ScriptedExecutor, stream: bool) -> None:
    executor.gate.clear()
    sock = send(server, prompt="long " * 40, stream=stream)
    wait_until(lambda: bool(executor.plans))
    begun = cut_while_a_step_runs(server, executor, sock)
    assert len(executor.plans) <= begun + 2
    assert sum(plan.num_rows for plan in executor.plans) < 100, "the prompt was computed to its end"


@pytest.mark.parametrize("stream", [True, False])
def test_a22_in_the_queue(server: Running, executor: ScriptedExecutor, stream: bool) -> None:
    executor.gate.clear()
    running = send(server, prompt="one", n=4)
    wait_until(lambda: bool(executor.plans))
    queued = send(server, prompt="two", stream=stream)
    wait_until(lambda: server.server.client.num_open == 2)
    queued.close()
    wait_until(lambda: server.server.client.num_open == 1)
    executor.gate.set()
    wait_until(lambda: len(executor.plans) > 20)
    running.close()
    server.wait_drained()
    first_two = byte_tokens("tw")
    assert not any(list(plan.tokens[:2]) == first_two for plan in executor.plans), "it was started all the same"


def test_a22_a_neighbour_is_unharmed(server: Running, executor: ScriptedExecutor) -> None:
    gone = send(server, prompt="two", stream=True)
    wait_until(lambda: bool(executor.plans))
    gone.close()
    assert server.complete("one", max_tokens=40)["choices"][0]["text"] == "abcdefgh" * 5


def test_a_client_that_does_not_read_stops_nobody(server: Running) -> None:
    """Its outputs pile up in memory, at most max_tokens of them, while others are answered."""
    sock = send(server, prompt="two", stream=True)
    assert server.complete("one", max_tokens=80)["choices"][0]["text"] == "abcdefgh" * 10
    sock.close()
