"""What stands around the routes: CORS, TLS, a prefix, the admin port, and logs."""

import logging
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import Running, Script, assert_error, serving, wait_until

from legato.core.config import ServerConfig, WebConfig, build
from legato.core.errors import ConfigError
from legato.server.lifecycle import bind
from legato.server.logs import JsonFormatter, set_up_logging
from legato.server.web import tls_options
from support.byte_level import VOCAB, byte_tokens
from support.scripted import ScriptedExecutor

TLS = Path(__file__).parents[1] / "support" / "tls"
CERT, KEY = str(TLS / "server.pem"), str(TLS / "server.key")
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def scripted() -> ScriptedExecutor:
    script = Script()
    script.set("hi", byte_tokens("fine"))
    return ScriptedExecutor(vocab_size=VOCAB, emit=script)


def preflight(server: Running, origin: str) -> httpx.Response:
    asked = {"origin": origin, "access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
    return server.http.options("/v1/completions", headers=asked)


def test_pages_of_allowed_origins_may_call() -> None:
    with serving(scripted(), allowed_origins=("https://good.example",), api_key=("k",)) as server:
        answer = preflight(server, "https://good.example")
        assert answer.status_code == 200, "a browser sends no key with it"
        assert answer.headers["access-control-allow-origin"] == "https://good.example"
        refused = preflight(server, "https://bad.example")
        assert "access-control-allow-origin" not in refused.headers
        origin = {"origin": "https://good.example"}
        unknown = server.http.post("/v1/completions", json={"prompt": "hi"}, headers=origin)
        assert_error(unknown, 401)
        assert unknown.headers["access-control-allow-origin"] == "https://good.example", "a page can read the error"
        known = server.http.post("/v1/completions", json={"prompt": "hi"}, headers={**origin, "x-api-key": "k"})
        assert known.status_code == 200
        assert "x-ratelimit-remaining-tokens" in known.headers["access-control-expose-headers"]


def test_pages_may_read_our_headers_and_every_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(scripted(), allowed_origins=("*",), permissive_fields=True) as server:
        origin = {"origin": "https://any.example"}
        answer = server.http.post("/v1/completions", json={"prompt": "hi", "temprature": 0}, headers=origin)
        ours = {name for name in answer.headers if name.startswith("x-")} - {"x-accel-buffering"}
        assert ours == {"x-request-id", "x-legato-ignored-fields"}
        assert ours <= set(answer.headers["access-control-expose-headers"].split(", "))
        bad = server.http.post("/v1/completions", json={"prompt": "hi"}, headers={**origin, "x-request-id": "a b"})
        assert_error(bad, 400, code="invalid_header")
        monkeypatch.setattr(server.server._state, "prepare", None)
        broken = server.http.post("/v1/completions", json={"prompt": "hi"}, headers=origin)
        assert_error(broken, 500)
        for each in (bad, broken):
            assert each.headers["access-control-allow-origin"] == "*", "a page can read the error"


def test_without_origins_there_is_no_cors() -> None:
    with serving(scripted()) as server:
        assert_error(preflight(server, "https://good.example"), 405)
        answer = server.http.post("/v1/completions", json={"prompt": "hi"}, headers={"origin": "https://good.example"})
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_tls() -> None:
    with serving(scripted(), ssl_certfile=CERT, ssl_keyfile=KEY) as server:
        trusted = ssl.create_default_context(cafile=CERT)
        with httpx.Client(base_url=server.url.replace("http:", "https:"), verify=trusted) as https:
            answer = https.post("/v1/completions", json={"prompt": "hi"})
            assert answer.json()["choices"][0]["text"] == "fine"
        with pytest.raises(httpx.TransportError):
            server.http.get("/health")


def test_tls_with_client_certificates() -> None:
    with serving(scripted(), ssl_certfile=CERT, ssl_keyfile=KEY, ssl_ca_certs=CERT, ssl_cert_reqs=2) as server:
        url = server.url.replace("http:", "https:") + "/health"
        context = ssl.create_default_context(cafile=CERT)
        with pytest.raises(httpx.TransportError), httpx.Client(verify=context) as stranger:
            stranger.get(url)
        context.load_cert_chain(CERT, KEY)
        with httpx.Client(verify=context) as known:
            assert known.get(url).status_code == 200


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"ssl_certfile": "/nowhere"}, "ssl_certfile: /nowhere: No such file"),
        ({"ssl_certfile": CERT, "ssl_keyfile": "/nowhere"}, "ssl_keyfile: /nowhere: No such file"),
        ({"ssl_certfile": KEY}, "ssl_certfile: .*server.key"),
        ({"ssl_certfile": CERT, "ssl_keyfile": str(TLS / "locked.key")}, "ssl_certfile: .*locked.key"),
        ({"ssl_certfile": CERT, "ssl_keyfile": KEY, "ssl_ca_certs": KEY}, "ssl_ca_certs: .*server.key"),
    ],
)
def test_bad_tls_files_are_named(files: dict[str, str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        tls_options(build(WebConfig, files))


def test_a_prefix_is_served_whether_the_proxy_strips_it_or_not() -> None:
    with serving(scripted(), root_path="/llm/", api_key=("k",)) as server:
        for prefix in ("", "/llm"):
            assert server.http.get(f"{prefix}/health").status_code == 200
            assert_error(server.post(f"{prefix}/v1/completions", prompt="hi"), 401)
            answer = server.http.post(
                f"{prefix}/v1/completions", json={"prompt": "hi"}, headers={"authorization": "Bearer k"}
            )
            assert answer.json()["choices"][0]["text"] == "fine"
        assert_error(server.http.get("/llmx/health"), 401)
        assert_error(server.http.get("/llm/llm/v1/models", headers={"x-api-key": "k"}), 404)


def test_the_admin_port_has_metrics_to_itself() -> None:
    with serving(scripted(), admin_port=0, api_key=("k",)) as server, httpx.Client(base_url=server.admin_url) as admin:
        for path in ("/health", "/ready", "/version"):
            assert server.http.get(path).status_code == admin.get(path).status_code == 200
        for path in ("/metrics", "/load"):
            assert admin.get(path).status_code == 200
            assert_error(server.http.get(path, headers={"x-api-key": "k", "host": admin.base_url.netloc.decode()}), 404)
        assert_error(admin.post("/v1/completions", json={"prompt": "hi"}), 404)
        assert b"vllm:num_requests_running" in admin.get("/metrics").content


def test_an_admin_port_in_use_is_said_at_start() -> None:
    with bind(ServerConfig(port=0))[0] as taken:
        taken.listen()
        with pytest.raises(ConfigError, match=f"port {taken.getsockname()[1]}"):
            bind(ServerConfig(port=0, admin_port=taken.getsockname()[1]))


class Lines(logging.Handler):
    """Log lines as they would be written."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(JsonFormatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def lines() -> Any:
    handler, root = Lines(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler.lines
    root.removeHandler(handler)
    root.setLevel(level)


SECRET = "swordfish"


def send_secrets(server: Running) -> None:
    """Text in every place that a client can put it, in requests that work, fail or are refused."""
    headers = {"x-request-id": "me", "traceparent": PARENT}
    for body in (
        {"prompt": f"hi {SECRET}", "stop": SECRET, "user": SECRET},
        {"prompt": f"hi {SECRET}", "temperature": SECRET},
        {"prompt": SECRET, "stream": True},
        {"prompt": [[SECRET]], SECRET: 1},
        {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 10**6},
    ):
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        server.http.post(path, json=body, headers=headers)
    server.http.post("/v1/completions", content=f'{{"{SECRET}'.encode(), headers={"content-type": "application/json"})


def test_no_text_of_clients_is_logged(lines: list[str]) -> None:
    with serving(scripted(), log_requests=True) as server:
        send_secrets(server)
    assert any(f'"request_id": "me", "trace_id": "{TRACE}"' in line for line in lines)
    assert not any(SECRET in line for line in lines)


def test_access_log_lines_can_be_left_out(lines: list[str]) -> None:
    with serving(scripted()) as server:
        server.http.get("/v1/models")
        wait_until(lambda: any('"message": "GET /v1/models 200"' in line for line in lines))
    lines.clear()
    with serving(scripted(), disable_access_log=True) as server:
        server.http.get("/v1/models")
    assert not any('"message": "GET /v1/models 200"' in line for line in lines)


def test_access_log_lines_of_some_paths_can_be_left_out() -> None:
    access = logging.getLogger("uvicorn.access")
    before, root = list(access.filters), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        set_up_logging("info", "text", ("/a,/b", "/c"))
        [new] = [each for each in access.filters if each not in before]
        shown = []
        for path in ("/a", "/b?x=1", "/c", "/ab", "/"):
            record = logging.LogRecord("uvicorn.access", 20, "", 0, "%s", ("peer", "GET", path, "1.1", 200), None)
            if access.filter(record):
                shown.append(path)
        assert shown == ["/ab", "/"]
        access.removeFilter(new)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
