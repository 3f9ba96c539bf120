"""The OpenAPI document of the server: bodies from the classes that parse them, answers by hand."""

from typing import Any

from pydantic.json_schema import models_json_schema

from legato.protocol.chat import ChatBody
from legato.protocol.completion import CompletionBody
from legato.protocol.parse import Body
from legato.protocol.tokens import DetokenizeBody, TokenizeBody

__all__ = ["openapi_document"]

_BODIES: dict[str, type[Body]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}
_SUMMARIES = {
    "/v1/chat/completions": "Generate the next message of a chat.",
    "/v1/completions": "Generate what follows a prompt.",
    "/tokenize": "Token ids of a prompt or of messages.",
    "/detokenize": "The text of token ids.",
    "/v1/models": "The names that `model` may hold.",
    "/v1/models/{name}": "One of them.",
    "/health": "Liveness: the engine makes progress.",
    "/ready": "Readiness: new requests are taken.",
    "/version": "The version.",
    "/load": "How many requests wait or run.",
    "/metrics": "Prometheus text.",
    "/openapi.json": "This document.",
}


def openapi_document(version: str, *, reports: bool) -> dict[str, Any]:
    """OpenAPI 3.1. reports: whether /load and /metrics are served here, not on a port of their own.

    A field of a body may also be null, which means left out; the schemas do not say so.
    """
    _, definitions = models_json_schema(
        [(body, "validation") for body in _BODIES.values()], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Any] = {path: {"post": _post(path, body)} for path, body in _BODIES.items()}
    for path, answer in _gets().items():
        if reports or path not in ("/load", "/metrics"):
            paths[path] = {"get": {"summary": _SUMMARIES[path], "responses": _responses(answer)}}
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    paths["/v1/models/{name}"]["get"]["parameters"] = [name]
    schemes = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Legato", "version": version},
        "paths": paths,
        "security": [{}, {"bearer": []}, {"key": []}],
        "components": {"schemas": {**definitions["$defs"], **_ANSWERS}, "securitySchemes": schemes},
    }


def _post(path: str, body: type[Body]) -> dict[str, Any]:
    answer = {"application/json": _ref(_ANSWER_OF[path])}
    if path.startswith("/v1/"):
        answer["text/event-stream"] = {"schema": {"type": "string"}}
    return {
        "summary": _SUMMARIES[path],
        "requestBody": {"required": True, "content": {"application/json": _ref(body.__name__)}},
        "responses": _responses(answer),
    }


def _gets() -> dict[str, dict[str, Any]]:
    status = {"application/json": {"schema": _object(status={"type": "string"})}}
    return {
        "/v1/models": {"application/json": _ref("ModelList")},
        "/v1/models/{name}": {"application/json": _ref("Model")},
        "/health": status,
        "/ready": status,
        "/version": {"application/json": {"schema": _object(version={"type": "string"})}},
        "/load": {"application/json": {"schema": _object(server_load={"type": "integer"})}},
        "/metrics": {"text/plain": {"schema": {"type": "string"}}},
        "/openapi.json": {"application/json": {"schema": {"type": "object"}}},
    }


def _responses(answer: dict[str, Any]) -> dict[str, Any]:
    error = {"description": "What went wrong.", "content": {"application/json": _ref("Error")}}
    return {"200": {"description": "The answer.", "content": answer}, "default": error}


def _ref(name: str) -> dict[str, Any]:
    return {"schema": {"$ref": f"#/components/schemas/{name}"}}


def _object(**properties: Any) -> dict[str, Any]:
    """An object that has these properties, and perhaps others."""
    return {"type": "object", "required": list(properties), "properties": properties}


_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_FINISH = {"enum": ["stop", "length", "tool_calls"]}
_ANSWER_OF = {
    "/v1/chat/completions": "ChatCompletion",
    "/v1/completions": "Completion",
    "/tokenize": "Tokens",
    "/detokenize": "Text",
}


def _generated(kind: str, **content: Any) -> dict[str, Any]:
    choice = _object(index=_COUNT, finish_reason=_FINISH, logprobs={"type": ["object", "null"]}, **content)
    choices = {"type": "array", "items": choice}
    usage = {"$ref": "#/components/schemas/Usage"}
    return _object(id=_TEXT, object={"const": kind}, created=_COUNT, model=_TEXT, choices=choices, usage=usage)


_ANSWERS: dict[str, Any] = {
    "Error": _object(
        error={
            **_object(message=_TEXT, type=_TEXT, param=_TEXT_OR_NULL, code=_TEXT_OR_NULL),
            "additionalProperties": False,
        }
    ),
    "Usage": _object(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT),
    "ChatCompletion": _generated(
        "chat.completion", message=_object(role={"const": "assistant"}, content=_TEXT_OR_NULL)
    ),
    "Completion": _generated("text_completion", text=_TEXT),
    "Model": _object(id=_TEXT, object={"const": "model"}, created=_COUNT, owned_by=_TEXT, max_model_len=_COUNT),
    "ModelList": _object(
        object={"const": "list"}, data={"type": "array", "items": {"$ref": "#/components/schemas/Model"}}
    ),
    "Tokens": _object(count=_COUNT, max_model_len=_COUNT, tokens={"type": "array", "items": _COUNT}),
    "Text": _object(prompt=_TEXT),
}
