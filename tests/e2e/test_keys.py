"""API keys: who is let in, what the others are told, and which paths stay open."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from harness import MODEL, Running, Script, assert_error, serving

from legato.core.config import ServerConfig
from legato.core.errors import ConfigError
from legato.server.keys import OPEN_PATHS, ApiKeys
from support.byte_level import VOCAB, byte_tokens
from support.scripted import ScriptedExecutor

GOOD = ["first-key", "second key ❤", "from-file"]


def sha256(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    script = Script()
    script.set("hi", byte_tokens("fine"))
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"# team keys\n\n{sha256('from-file').upper()}  -\n{sha256('other')} for the batch job\n")
    executor = ScriptedExecutor(vocab_size=VOCAB, emit=script)
    with serving(executor, api_key=("first-key", "second key ❤"), api_key_file=str(path)) as it:
        yield it


def post(server: Running, path: str = "/v1/completions", **headers: str) -> httpx.Response:
    encoded = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return server.http.post(path, json={"prompt": "hi"}, headers=encoded)


@pytest.mark.parametrize("key", GOOD)
def test_each_key_opens_in_either_header(server: Running, key: str) -> None:
    assert post(server, authorization=f"Bearer {key}").status_code == 200
    assert post(server, authorization=f"bearer  {key}").status_code == 200
    assert post(server, x_api_key=key).status_code == 200
    assert post(server, x_api_key=key, authorization="Bearer wrong").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "first-key"},
        {"authorization": "Basic first-key"},
        {"authorization": "Bearer first-key2"},
        {"authorization": "Bearer first-ke"},
        {"authorization": "Bearer FIRST-KEY"},
        {"authorization": "Bearer ❤"},
        {"x_api_key": ""},
        {"x_api_key": "wrong"},
        {"x_api_key": sha256("from-file")},
        {"x_api_key": "x" * 30_000},
        {"api_key": "first-key"},
    ],
)
def test_all_else_is_401(server: Running, headers: dict[str, str]) -> None:
    response = post(server, **headers)
    message = assert_error(response, 401, code="invalid_api_key")
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["x-request-id"]
    assert not any(value in message for value in headers.values() if len(value) > 10), "keys are not repeated"


@pytest.mark.parametrize("path", ["/v1/models", "/", "/nothing", "/v1//models", "/health/", "/health/../v1/models"])
def test_no_other_path_is_open(server: Running, path: str) -> None:
    assert_error(server.http.get(path), 401)
    assert_error(post(server, path), 401)


def test_probes_need_no_key(server: Running) -> None:
    assert {"/health", "/ready", "/metrics", "/version"} == OPEN_PATHS
    assert all(server.http.get(path).status_code == 200 for path in OPEN_PATHS)


def test_the_official_client(server: Running) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        server.api.completions.create(model=MODEL, prompt="hi")
    assert caught.value.code == "invalid_api_key"
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="from-file", max_retries=0) as api:
        assert api.completions.create(model=MODEL, prompt="hi").choices[0].text == "fine"
        assert [model.id for model in api.models.list()] == [MODEL]


def test_an_unread_body_does_not_reach_the_next_request(server: Running) -> None:
    body = {"prompt": "POST /v1/completions HTTP/1.1\r\n" * 10_000}
    assert_error(server.http.post("/v1/completions", json=body), 401)
    assert post(server, x_api_key="first-key").json()["choices"][0]["text"] == "fine"


def test_without_keys_everybody_is_let_in() -> None:
    with serving(ScriptedExecutor(vocab_size=VOCAB, emit=Script())) as server:
        assert post(server).status_code == 200
        assert post(server, authorization="Bearer whatever").status_code == 200


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "holds no keys"),
        (b"# none\n", "holds no keys"),
        (b"first-key\n", "line 1"),
        (sha256("a").encode() + b"\n\n" + b"0" * 63, "line 3"),
        (b"0" * 65, "line 1"),
        (b"\xff\xfe", "not a text file"),
        (None, "No such file"),
    ],
)
def test_a_bad_key_file_is_named(tmp_path: Path, content: bytes | None, what: str) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{path}.*{what}"):
        ApiKeys.load(ServerConfig(api_key_file=str(path)))


def test_an_empty_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="api_key"):
        ApiKeys.load(ServerConfig(api_key=("a", "")))
