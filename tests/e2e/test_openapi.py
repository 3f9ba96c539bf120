"""/openapi.json: it names every route, what it says of answers is true, and nothing that fits it makes a 5xx."""

import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import schemathesis
from harness import Running, Script, serving
from hypothesis import HealthCheck, given, settings

from support.byte_level import VOCAB, byte_tokens
from support.scripted import ScriptedExecutor

PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    script = Script()
    script.set("hi", byte_tokens("fine"))
    with serving(ScriptedExecutor(vocab_size=VOCAB, emit=script)) as it:
        yield it


@pytest.fixture(scope="module")
def document(server: Running) -> dict[str, Any]:
    found: dict[str, Any] = server.http.get("/openapi.json").json()
    return found


def holds(document: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(value)


def answer_schema(document: dict[str, Any], path: str, method: str, status: int) -> dict[str, Any]:
    responses = document["paths"][path][method]["responses"]
    schema: dict[str, Any] = responses.get(str(status), responses["default"])["content"]["application/json"]["schema"]
    return schema


def test_every_route_is_in_it_and_no_other(server: Running, document: dict[str, Any]) -> None:
    app: Any = server.server.config.loaded_app
    while not hasattr(app, "routes"):
        app = app.app
    served = {(route.path.replace(":path", ""), method.lower()) for route in app.routes for method in route.methods}
    named = {(path, method) for path, item in document["paths"].items() for method in item}
    assert {(path, method) for path, method in served if method != "head"} == named


def test_references_lead_somewhere(document: dict[str, Any]) -> None:
    names = set(re.findall(r"#/components/schemas/([^'\"]+)", str(document)))
    assert names <= set(document["components"]["schemas"])
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/{name}", "/health", "/ready", "/version", "/load"])
def test_answers_to_get_are_as_it_says(server: Running, document: dict[str, Any], path: str) -> None:
    for name in ("scripted", "nobody"):
        answer = server.http.get(path.replace("{name}", name))
        holds(document, answer_schema(document, path, "get", answer.status_code), answer.json())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": ["hi", "hi"], "logprobs": 2}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "n": 2}),
        ("/tokenize", {"prompt": "hi"}),
        ("/detokenize", {"tokens": [1, 2]}),
        *((path, {"nonsense": 1}) for path in PATHS),
    ],
)
def test_answers_to_post_are_as_it_says(
    server: Running, document: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    answer = server.http.post(path, json=body)
    assert answer.status_code == (400 if "nonsense" in body else 200)
    holds(document, answer_schema(document, path, "post", answer.status_code), answer.json())
    if answer.status_code == 200:
        name = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        holds(document, name, body)


@pytest.fixture(scope="module")
def operations(document: dict[str, Any]) -> dict[str, Any]:
    schema = schemathesis.openapi.from_dict(document)
    return {each.ok().label: each.ok() for each in schema.get_all_operations()}


FITS, DOES_NOT = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE


@pytest.mark.parametrize(
    ("label", "mode"),
    [*((f"POST {path}", mode) for path in PATHS for mode in (FITS, DOES_NOT)), ("GET /v1/models/{name}", FITS)],
)
def test_nothing_makes_a_5xx(
    server: Running, document: dict[str, Any], operations: dict[str, Any], label: str, mode: Any
) -> None:
    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=operations[label].as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        answer = case.call(base_url=server.url, timeout=30)
        assert answer.status_code < 500, (answer.status_code, case.body)
        method, path = label.lower().split()
        if answer.headers.get("content-type") == "application/json":
            holds(document, answer_schema(document, path, method, answer.status_code), answer.json())

    check()
    assert server.complete("hi")["choices"][0]["text"] == "fine"
    server.wait_drained()
