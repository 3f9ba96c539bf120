"""The application: routes, and OpenAI's error object for whatever goes wrong."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

import legato
from legato.core.config import ServerConfig
from legato.core.errors import LegatoError
from legato.protocol.errors import describe
from legato.protocol.openapi import openapi_document
from legato.protocol.responses import dump
from legato.server.generate import Generation
from legato.server.http import (
    ClientGone,
    EventStream,
    HttpError,
    error_response,
    json_response,
    read_json_body,
    refusal,
    unless_gone,
)
from legato.server.http_metrics import CountHttp, HttpMetrics
from legato.server.keys import METER, ApiKeys, KeyGate
from legato.server.limits import Meter
from legato.server.middleware import Envelope
from legato.server.state import ServerState
from legato.server.tenants import of_tenant
from legato.server.tokens import detokenize, tokenize
from legato.server.web import ByPort, RootPath, cors

__all__ = ["create_app"]

log = logging.getLogger(__name__)

MAX_NAMED = 16  # unknown fields


def create_app(
    state: ServerState, keys: ApiKeys, config: ServerConfig, metrics: HttpMetrics, admin_port: int | None = None
) -> ASGIApp:
    """The routes over one engine, behind the gate. Those for operators have the admin port to themselves, if any."""
    outer, gates = cors(config.web), [Middleware(KeyGate, keys=keys)]
    document = _document(reports=admin_port is None)
    routes = [*_generation(state, config.tenant_header), *_tokens(state), *_models(state), *_probes(state), document]
    if admin_port is None:
        app: ASGIApp = _application(state, metrics, [*routes, *_reports(state)], outer, gates)
    else:
        admin = _application(state, metrics, [*_probes(state), *_reports(state)], [], [])
        app = ByPort(_application(state, metrics, routes, outer, gates), admin, admin_port)
    return RootPath(app, config.web.root_path) if config.web.root_path else app


def _application(
    state: ServerState,
    metrics: HttpMetrics,
    routes: Sequence[Route],
    outer: Sequence[Middleware],
    gates: Sequence[Middleware],
) -> Starlette:
    """outer: around all answers, those to what fails too."""
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(CountHttp, metrics=metrics, routes=routes),
            *outer,
            Middleware(Envelope, state=state),
            *gates,
        ],
        exception_handlers={
            LegatoError: _on_legato_error,
            HTTPException: _on_http_exception,
            ClientGone: _on_client_gone,
        },
    )


def _generation(state: ServerState, tenant_header: str | None) -> Iterator[Route]:
    async def generate(http: HttpRequest, make: Callable[[float, bytes], Generation]) -> Response:
        arrival_s = time.monotonic()
        state.admit()
        data = await read_json_body(http, state.max_body_bytes)
        generation = await state.prepare(partial(make, arrival_s), data)
        meter: Meter = http.scope[METER]
        meter.reserve(generation.estimated_tokens())
        generation = of_tenant(await state.with_grammars(generation), http, meter, tenant_header)
        if generation.style.stream:
            return _warned(EventStream(generation.frames(meter), state.keep_alive_s), generation.ignored)
        answer = json_response(await unless_gone(http.receive, generation.whole(meter)))
        return _warned(answer, generation.ignored)

    async def completions(http: HttpRequest) -> Response:
        return await generate(http, state.completion)

    async def chat_completions(http: HttpRequest) -> Response:
        return await generate(http, state.chat)

    yield Route("/v1/completions", completions, methods=["POST"])
    yield Route("/v1/chat/completions", chat_completions, methods=["POST"])


def _warned(response: Response, ignored: Sequence[str]) -> Response:
    """Names unknown fields that were let pass in the log and in a header, in ASCII and not without end."""
    if ignored:
        names = ", ".join(ignored[:MAX_NAMED]) + (", ..." if len(ignored) > MAX_NAMED else "")
        log.warning("ignored unknown fields: %s", names)
        response.headers["x-legato-ignored-fields"] = names.encode("ascii", "backslashreplace").decode()
    return response


def _tokens(state: ServerState) -> Iterator[Route]:
    async def answer(
        make: Callable[[ServerState, bytes], tuple[dict[str, Any], Sequence[str]]], http: HttpRequest
    ) -> Response:
        data = await read_json_body(http, state.max_body_bytes)
        body, ignored = await state.prepare(partial(make, state), data)
        return _warned(json_response(body), ignored)

    yield Route("/tokenize", partial(answer, tokenize), methods=["POST"])
    yield Route("/detokenize", partial(answer, detokenize), methods=["POST"])


def _models(state: ServerState) -> Iterator[Route]:
    def card(name: str) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": state.started_s,
            "owned_by": "legato",
            "root": state.model_names[0],
            "parent": None,
            "max_model_len": state.inputs.max_model_len,
        }

    async def models(http: HttpRequest) -> Response:
        return json_response({"object": "list", "data": [card(name) for name in state.model_names]})

    async def model(http: HttpRequest) -> Response:
        return json_response(card(state.model_name(http.path_params["name"])))

    yield Route("/v1/models", models)
    yield Route("/v1/models/{name:path}", model)


def _probes(state: ServerState) -> Iterator[Route]:
    async def health(http: HttpRequest) -> Response:
        """Liveness: the engine makes progress. Stays 200 while draining."""
        trouble = state.trouble()
        return json_response({"status": "ok"}) if trouble is None else error_response(503, trouble, code="unavailable")

    async def ready(http: HttpRequest) -> Response:
        """Readiness: new requests are taken."""
        state.admit()
        return json_response({"status": "ready"})

    async def version(http: HttpRequest) -> Response:
        return json_response({"version": legato.__version__})

    yield from (Route(f"/{get.__name__}", get) for get in (health, ready, version))


def _reports(state: ServerState) -> Iterator[Route]:
    async def load(http: HttpRequest) -> Response:
        return json_response({"server_load": state.client.num_open})

    async def metrics(http: HttpRequest) -> Response:
        return Response(state.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    yield from (Route(f"/{get.__name__}", get) for get in (load, metrics))


def _document(*, reports: bool) -> Route:
    body = dump(openapi_document(legato.__version__, reports=reports))

    async def document(http: HttpRequest) -> Response:
        return json_response(body)

    return Route("/openapi.json", document)


async def _on_legato_error(http: HttpRequest, error: Exception) -> Response:
    if isinstance(error, HttpError):
        return refusal(error)
    status, body, headers = describe(error)
    return json_response(body, status, headers)


async def _on_http_exception(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = http.url.path[:128]
    if error.status_code == 404:
        return error_response(404, f"there is no {path!r} here", code="not_found")
    if error.status_code == 405:
        message = f"{http.method} is not allowed for {path!r}"
        return error_response(405, message, code="method_not_allowed", headers=error.headers)
    return error_response(error.status_code, str(error.detail), headers=error.headers)


async def _on_client_gone(http: HttpRequest, error: Exception) -> Response:
    log.debug("client gone: %s", http.url.path)
    return Response(status_code=499)  # nobody reads it
