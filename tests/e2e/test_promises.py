"""The promises through the whole stack: the default model, the native executor, a real server (docs/promises.md)."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from harness import Running, assert_error, running, wait_until

from legato.core.config import CacheConfig, EngineConfig, SchedulerConfig, ServerConfig
from legato.engine.start import start

ROOMY: dict[str, Any] = {"num_blocks": 512}


@contextmanager
def served(*, num_blocks: int, block_size: int = 16, threads: int = 2, **scheduler: Any) -> Iterator[Running]:
    config = EngineConfig(
        cache=CacheConfig(num_blocks=num_blocks, block_size=block_size),
        scheduler=SchedulerConfig(**{"max_num_seqs": 8, **scheduler}),
        threads=threads,
    )
    with running(start(config), ServerConfig(port=0)) as server:
        yield server


def bodies() -> list[dict[str, Any]]:
    """Prompts of 40 to 110 tokens, greedy and sampled, with penalties, stop strings and two choices."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1},
        {"temperature": 0, "repetition_penalty": 1.2},
        {"temperature": 0.9, "frequency_penalty": 0.5, "top_k": 40},
        {"temperature": 1, "n": 2},
        {"temperature": 0, "stop": ["\n\n"]},
    ]
    source = random.Random(4)
    return [
        {
            "prompt": [source.randrange(300, 40000) for _ in range(40 + 10 * i)],
            "max_tokens": 16 + 2 * i,
            "ignore_eos": True,
            "logprobs": 2,
            "seed": i,
            **kinds[i % len(kinds)],
        }
        for i in range(8)
    ]


def together(server: Running) -> list[Any]:
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda body: server.complete(**body)["choices"], bodies())
        return list(answers)


@pytest.fixture(scope="module")
def alone() -> list[Any]:
    """Texts, ends and log probabilities of each request by itself, with room for all."""
    with served(**ROOMY) as server:
        return [server.complete(**body)["choices"] for body in bodies()]


def test_p1_roomy_is_starved() -> None:
    """Eight prompts of two blocks grow to five each; the starved pool holds ten of these forty."""
    prompts = [[400 + 50 * i + j for j in range(20)] for i in range(8)]
    body = {"max_tokens": 48, "ignore_eos": True, "seed": 3, "frequency_penalty": 0.4, "logprobs": 2}
    answers = []
    for num_blocks, preempts in ((512, False), (10, True)):
        with served(num_blocks=num_blocks) as server:
            answers.append(server.complete(prompts, **body)["choices"])
            assert (server.server.client.stats().preemptions > 0) == preempts
            server.wait_drained()
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "change",
    [
        {"max_num_batched_tokens": 24, "long_prefill_token_threshold": 7, "threads": 3},
        {"block_size": 64, "num_blocks": 128, "threads": 1, "policy": "static"},
    ],
    ids=str,
)
def test_p1_solo_whole_is_crowd_cut_otherwise(alone: list[Any], change: dict[str, Any]) -> None:
    with served(**{**ROOMY, **change}) as server:
        assert together(server) == alone


def leave(server: Running, number: int) -> None:
    """A streamed request whose client goes away: at once, or after some events."""
    body = {**bodies()[number % 8], "max_tokens": 80, "stream": True, "stop": None, "logprobs": None}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        for _ in range(number % 5 * 2):
            next(lines)


def test_p2_an_abort_storm_drains_to_baseline(alone: list[Any]) -> None:
    """24 clients leave while 8 stay, on a pool that is too small for all: who stays gets the same answer."""
    with served(num_blocks=48) as server:
        with ThreadPoolExecutor(12) as pool:
            storm = [pool.submit(leave, server, number) for number in range(24)]
            answers = together(server)
            for each in storm:
                each.result(60)
        assert answers == alone
        server.wait_drained()
        loop, metrics = server.engine.loop, server.engine.metrics
        wait_until(lambda: not (loop._renderer._live or metrics.requests.num_live or loop.busy))
        assert server.server.client.stats().waiting_tokens == 0
        ends = [
            metrics.registry.get_sample_value(
                "vllm:request_success_total",
                {"model_name": server.engine.model_names[0], "engine": "0", "finished_reason": reason},
            )
            for reason in ("stop", "length", "abort", "error")
        ]
        assert sum(end or 0 for end in ends) == sum(body.get("n", 1) for body in bodies() * 4), "one end each"
        assert ends[3] is None or ends[3] == 0


def test_p3_a_request_that_can_never_fit_is_refused_at_once() -> None:
    with served(num_blocks=8) as server:
        assert server.engine.inputs.max_model_len == 8 * 16 + 1
        message = assert_error(server.post("/v1/completions", prompt=[1] * 129), 400, code="context_length_exceeded")
        assert "129" in message
        assert_error(server.post("/v1/completions", prompt=[1] * 100, max_tokens=30), 400)
        assert server.complete([1] * 128, max_tokens=1)["usage"]["completion_tokens"] == 1
