"""Limits per key over HTTP: 429 with the time to wait, OpenAI's headers, and nothing kept of what has ended."""

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from harness import MODEL, Running, Script, assert_error, serving, wait_until

from support.byte_level import VOCAB, byte_tokens
from support.scripted import ScriptedExecutor

LINES = {
    "few": "requests_per_second=0.001",
    "tokens": "tokens_per_minute=100",
    "narrow": "concurrent_requests=1",
    "free": "",
}


@pytest.fixture
def executor() -> ScriptedExecutor:
    script = Script()
    script.set("hi", byte_tokens("fine"))
    script.set("endless", byte_tokens("x" * 3000))
    return ScriptedExecutor(vocab_size=VOCAB, emit=script, num_blocks=1024)


@pytest.fixture
def server(executor: ScriptedExecutor, tmp_path: Path) -> Iterator[Running]:
    path = tmp_path / "keys"
    path.write_text("".join(f"{hashlib.sha256(key.encode()).hexdigest()} {line}\n" for key, line in LINES.items()))
    with serving(executor, api_key_file=str(path)) as it:
        yield it


def post(server: Running, key: str, path: str = "/v1/completions", **body: Any) -> httpx.Response:
    return server.http.post(path, json={"prompt": "hi", **body}, headers={"x-api-key": key})


def test_requests_per_second(server: Running) -> None:
    first = post(server, "few")
    assert first.status_code == 200
    assert first.headers["x-ratelimit-limit-requests"] == "1"
    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    assert first.headers["x-ratelimit-reset-requests"] == "16m40s"
    assert "x-ratelimit-limit-tokens" not in first.headers
    second = post(server, "few", "/tokenize")
    message = assert_error(second, 429, code="rate_limit_exceeded")
    assert "0.001 requests per second" in message
    assert 990 <= int(second.headers["retry-after"]) <= 1000
    assert second.headers["x-ratelimit-remaining-requests"] == "0"
    assert second.headers["x-request-id"]
    assert server.http.get("/v1/models", headers={"x-api-key": "few"}).status_code == 200, "only POSTs count"
    for _ in range(5):
        free = post(server, "free")
        assert free.status_code == 200
        assert not any(name.startswith("x-ratelimit") for name in free.headers)


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_per_minute(server: Running, stream: bool) -> None:
    first = post(server, "tokens", max_tokens=50, stream=stream)
    assert first.status_code == 200
    assert first.headers["x-ratelimit-limit-tokens"] == "100"
    if stream:
        assert first.headers["x-ratelimit-remaining-tokens"] == "48", "an estimate: two of the prompt, 50 at most"
    else:
        assert first.headers["x-ratelimit-remaining-tokens"] == "93", "two of the prompt, five of the answer"
    second = post(server, "tokens", prompt="endless", max_tokens=80)
    assert second.status_code == 200, "what was reserved beyond what was used is given back"
    assert 6 <= int(second.headers["x-ratelimit-remaining-tokens"]) <= 8
    third = post(server, "tokens", max_tokens=90)
    message = assert_error(third, 429, code="rate_limit_exceeded")
    assert "100 tokens per minute" in message
    assert 45 <= int(third.headers["retry-after"]) <= 52
    server.wait_drained()


def test_a_client_that_leaves_pays_for_what_it_got(server: Running) -> None:
    body = {"prompt": "endless", "max_tokens": 3000, "stream": True}
    with server.http.stream("POST", "/v1/completions", json=body, headers={"x-api-key": "tokens"}) as response:
        assert response.status_code == 200
        lines = response.iter_lines()
        for _ in range(240):
            next(lines)
    server.wait_drained()
    wait_until(lambda: post(server, "tokens").status_code == 429)


def test_concurrent_requests(server: Running, executor: ScriptedExecutor) -> None:
    executor.gate.clear()
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="narrow", max_retries=0) as api:
        texts: list[str] = []

        def read() -> None:
            stream = api.completions.create(model=MODEL, prompt="hi", stream=True)
            texts.extend(chunk.choices[0].text for chunk in stream)

        thread = threading.Thread(target=read)
        thread.start()
        wait_until(lambda: server.server.client.num_open == 1)
        refused = post(server, "narrow")
        assert_error(refused, 429, code="rate_limit_exceeded")
        assert refused.headers["retry-after"] == "1"
        with pytest.raises(openai.RateLimitError):
            api.completions.create(model=MODEL, prompt="hi")
        executor.gate.set()
        thread.join()
        assert "".join(texts) == "fine"
        for stream in (True, False) * 20:
            assert post(server, "narrow", stream=stream).status_code == 200, "one after the other"


def test_without_keys_all_share_the_default() -> None:
    with serving(ScriptedExecutor(vocab_size=VOCAB, emit=Script()), requests_per_second=0.001) as server:
        assert server.post("/v1/completions", prompt="hi").status_code == 200
        assert_error(server.post("/v1/completions", prompt="hi"), 429, code="rate_limit_exceeded")
