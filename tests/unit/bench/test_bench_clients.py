"""The load generator beside a client written without it, both held against the server's own clock.

The server sends a chunk only when the client has said that it saw the one before, so each time that a client notes
lies between two that the server notes: the clients can differ by no more than that, however slow the machine is.
"""

import asyncio
import itertools
import json
import threading
import time
from typing import Any

import httpx
import pytest

from legato.bench.client import Endpoint, Record, send
from legato.bench.figures import evaluate
from legato.bench.load import Run
from support.scripted_server import Answer, scripted_server

CHUNKS = ("ab", "c", "", "de", "f")
TOKENS = 12  # that the five chunks hold, by the server's usage


class Lockstep:
    """sent_s: when each chunk left the server, and when the stream went on after the last."""

    def __init__(self) -> None:
        self.sent_s: list[float] = []
        self._seen = 0
        self._changed = threading.Condition()

    def before(self, number: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._seen == number, timeout=60)
        self.sent_s.append(time.perf_counter())

    def saw(self) -> None:
        with self._changed:
            self._seen += 1
            self._changed.notify()

    @property
    def answer(self) -> Answer:
        return Answer(CHUNKS, {"prompt_tokens": 3, "completion_tokens": TOKENS}, before=self.before)


class Watched(list[float]):
    """The chunks of a record, that tells of each."""

    def __init__(self, lockstep: Lockstep) -> None:
        super().__init__()
        self._lockstep = lockstep

    def append(self, at_s: float) -> None:
        super().append(at_s)
        self._lockstep.saw()


def path(chat: bool) -> str:
    return "/v1/chat/completions" if chat else "/v1/completions"


def body(chat: bool) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": "x"}]} if chat else {"prompt": "x"}
    return {**asked, "stream": True, "stream_options": {"include_usage": True}}


def by_the_benchmark(url: str, chat: bool, lockstep: Lockstep) -> tuple[float, dict[str, list[float]]]:
    """Send time, and figures in milliseconds."""
    record = Record(time.perf_counter(), TOKENS, chunks=Watched(lockstep))
    asyncio.run(send(Endpoint.parse(url, path(chat), {}, chat=chat), json.dumps(body(chat)).encode(), record, 60))
    assert (record.error, record.output_tokens) == ("", TOKENS)
    figures = evaluate(Run([record], record.planned_s, record.ended_s, 0.0, 0), goodput={})
    return record.sent_s, {name: list(values) for name, values in figures.latencies.items()}


def by_hand(url: str, chat: bool, lockstep: Lockstep) -> tuple[float, dict[str, list[float]]]:
    """The same, from the definitions in docs/bench.md."""
    times, tokens = [], 0
    sent_s = time.perf_counter()
    with httpx.stream("POST", url + path(chat), json=body(chat), timeout=60) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            opens = chat and "role" in event["choices"][0]["delta"] if event["choices"] else True
            if not opens:
                times.append(time.perf_counter())
                lockstep.saw()
            tokens = event.get("usage", {}).get("completion_tokens", tokens)
    ttft, e2el = times[0] - sent_s, times[-1] - sent_s
    gaps = [after - before for before, after in itertools.pairwise(times)]
    seconds = {"ttft": [ttft], "e2el": [e2el], "tpot": [(e2el - ttft) / (tokens - 1)], "itl": gaps}
    return sent_s, {name: [1000 * value for value in values] for name, values in seconds.items()}


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("client", [by_the_benchmark, by_hand])
def test_both_clients_agree_with_the_clock_of_the_server(client: Any, chat: bool) -> None:
    lockstep = Lockstep()
    with scripted_server(lambda index, body: lockstep.answer) as server:
        sent_s, figures = client(server.url, chat, lockstep)
    s = lockstep.sent_s
    assert len(s) == len(CHUNKS) + 1

    def between(low_s: float, value_ms: float, high_s: float) -> bool:
        return 1000 * low_s - 1e-6 <= value_ms <= 1000 * high_s + 1e-6

    [ttft], [tpot], [e2el] = figures["ttft"], figures["tpot"], figures["e2el"]
    assert between(s[0] - sent_s, ttft, s[1] - sent_s)
    assert between(s[4] - sent_s, e2el, s[5] - sent_s)
    assert between((s[4] - s[1]) / (TOKENS - 1), tpot, (s[5] - s[0]) / (TOKENS - 1))
    assert len(figures["itl"]) == len(CHUNKS) - 1
    for i, gap in enumerate(figures["itl"]):
        assert between(0.0, gap, s[i + 2] - s[i])
