"""HTTP answers in numbers: by method, status group and route, and nothing that a client can make up."""

from contextlib import suppress

import httpx
from harness import Running, serving, wait_until

from support.byte_level import VOCAB
from support.scripted import AnswerAll, ScriptedExecutor


def scripted() -> ScriptedExecutor:
    return ScriptedExecutor(vocab_size=VOCAB, emit=AnswerAll([40] * 3000), num_blocks=400)


def counts(server: Running) -> dict[tuple[str, str, str], float]:
    return {
        (sample.labels["method"], sample.labels["status"], sample.labels["handler"]): sample.value
        for family in server.engine.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "http_requests_total"
    }


def test_answers_are_counted_by_route_and_status_group() -> None:
    with serving(scripted(), api_key=["key"]) as server:
        http = httpx.Client(base_url=server.url, headers={"authorization": "Bearer key"})
        for _ in range(2):
            assert http.post("/v1/completions", json={"prompt": "a", "max_tokens": 3}).status_code == 200
        assert http.post("/v1/completions", json={"prompt": "a", "no": 1}).status_code == 400
        assert httpx.post(f"{server.url}/v1/completions", json={"prompt": "a"}).status_code == 401
        assert http.get("/v1/models/none").status_code == 404
        assert http.get("/v1/models/more/none").status_code == 404
        assert http.get("/made/up").status_code == 404
        assert http.request("PROPFIND", "/v1/models").status_code == 405
        for path in ("/health", "/metrics", "/version"):
            assert http.get(path).status_code == 200
        http.close()
        wait_until(lambda: sum(counts(server).values()) == 8)
        assert counts(server) == {
            ("POST", "2xx", "/v1/completions"): 2,
            ("POST", "4xx", "/v1/completions"): 2,
            ("GET", "4xx", "/v1/models/{name}"): 2,
            ("GET", "4xx", "none"): 1,
            ("other", "4xx", "/v1/models"): 1,
        }
        registry = server.engine.metrics.registry
        assert registry.get_sample_value("http_request_duration_highr_seconds_count") == 8


def test_clients_that_leave_are_counted_once() -> None:
    executor = scripted()
    with serving(executor) as server:
        body = {"prompt": "a", "max_tokens": 3000, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_lines())
        wait_until(lambda: counts(server) == {("POST", "2xx", "/v1/completions"): 1})
        executor.gate.clear()
        impatient = httpx.Timeout(60, read=0.2)
        with suppress(httpx.ReadTimeout):
            server.http.post("/v1/completions", json={"prompt": "b", "max_tokens": 3}, timeout=impatient)
        wait_until(lambda: ("POST", "4xx", "/v1/completions") in counts(server))
        executor.gate.set()
