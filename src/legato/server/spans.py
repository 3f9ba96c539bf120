"""OpenTelemetry spans of requests, sent to a collector over OTLP/HTTP. Needs the extra `otel`.

A request is a span of kind SERVER, named and attributed by the semantic conventions for generative AI, with children
for its time in the queue, in prefill and in decode. Its parent is the caller's span, where the HTTP request named one.
"""

import importlib.util
import secrets
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import legato
from legato.core.config import ServerConfig
from legato.core.errors import ConfigError
from legato.core.types import FinishReason, SamplingParams
from legato.engine.instruments import Counter
from legato.engine.timeline import Timeline
from legato.server.context import Origin

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.trace import Span

__all__ = ["Spans", "check_endpoint", "request_attributes"]

_EXPORTER = "opentelemetry.exporter.otlp.proto.http"
_PATH = "/v1/traces"  # where collectors take spans, unless the endpoint says otherwise
_Attributes = dict[str, Any]


def check_endpoint(endpoint: str) -> str:
    """The URL that spans are posted to. ConfigError where it is none, or OpenTelemetry is not installed."""
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(
            f"otlp_traces_endpoint: {endpoint!r} is not an http:// or https:// URL; spans go out as OTLP over HTTP, "
            "which collectors take at port 4318"
        )
    try:
        found = importlib.util.find_spec(_EXPORTER)
    except ModuleNotFoundError:  # of a package above it
        found = None
    if found is None:
        raise ConfigError("otlp_traces_endpoint: OpenTelemetry is not installed; pip install 'legato[otel]'")
    return endpoint if url.path.strip("/") else endpoint.rstrip("/") + _PATH


class Spans:
    """A `Sink` that makes spans, and sends them when it is flushed. Spans that cannot be sent are counted and lost.

    OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER and OTEL_EXPORTER_OTLP_TRACES_* (headers, timeout,
    certificates, compression) hold as in all of OpenTelemetry.
    """

    def __init__(self, endpoint: str, config: ServerConfig, outcomes: Counter) -> None:
        """outcomes: requests by what became of their spans, "exported" or "failed"."""
        url = check_endpoint(endpoint)
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._trace = trace
        self._success = SpanExportResult.SUCCESS
        self._outcomes = outcomes
        port = {"server.port": config.port} if config.port else {}
        self._server = {"server.address": config.host, **port}
        self._ended: list[Span] = []
        self._requests = 0  # that `_ended` is of
        self._ids = _Ids()
        resource = Resource.create({"service.version": legato.__version__})
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "legato"}))
        provider = TracerProvider(
            resource=resource, shutdown_on_exit=False, id_generator=cast("IdGenerator", self._ids)
        )
        self._tracer = provider.get_tracer("legato", legato.__version__)
        self._exporter = OTLPSpanExporter(endpoint=url)

    def take(self, origin: Origin, timeline: Timeline) -> None:
        """Make the spans of a request. None where the caller, or the sampler, does not want them."""
        offset_s = time.time() - time.monotonic()

        def at(seconds: float) -> int:
            return int((seconds + offset_s) * 1e9)

        attributes = request_attributes(origin, timeline) | self._server
        span = self._tracer.start_span(
            f"{attributes['gen_ai.operation.name']} {origin.reply.model}",
            self._parent(origin),
            self._trace.SpanKind.SERVER,
            attributes,
            start_time=at(timeline.arrival_s),
        )
        if not span.is_recording():
            return
        if timeline.error is not None:
            span.set_status(self._trace.StatusCode.ERROR, timeline.error)
        inside = self._trace.set_span_in_context(span)
        for name, begin_s, end_s, details in _parts(timeline):
            part = self._tracer.start_span(name, inside, attributes=details, start_time=at(begin_s))
            part.end(at(end_s))
            self._ended.append(part)
        span.end(at(timeline.end_s))
        self._ended.append(span)
        self._requests += 1

    def flush(self) -> None:
        if not self._ended:
            return
        sent = self._exporter.export(cast("list[ReadableSpan]", self._ended)) is self._success
        self._outcomes.add(self._requests, "exported" if sent else "failed")
        self._ended.clear()
        self._requests = 0

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _parent(self, origin: Origin) -> "Context":
        context, trace = origin.context, self._trace
        self._ids.trace_id = context.trace_id if context is not None else None
        if context is None or context.parent is None:
            nobody: Context = trace.set_span_in_context(trace.INVALID_SPAN)
            return nobody
        parent = trace.SpanContext(
            int(context.parent.trace_id, 16),
            int(context.parent.span_id, 16),
            is_remote=True,
            trace_flags=trace.TraceFlags(context.parent.flags),
        )
        caller: Context = trace.set_span_in_context(trace.NonRecordingSpan(parent))
        return caller


class _Ids:
    """An IdGenerator: a request that begins a trace has the trace id that its log lines have."""

    def __init__(self) -> None:
        self.trace_id: str | None = None

    def generate_span_id(self) -> int:
        return secrets.randbits(64) or 1

    def generate_trace_id(self) -> int:
        return int(self.trace_id or secrets.token_hex(16), 16)

    def is_trace_id_random(self) -> bool:
        return True


def request_attributes(origin: Origin, timeline: Timeline) -> _Attributes:
    """Attributes of a request's span, by the semantic conventions where they have a name."""
    params = timeline.request.params
    attributes: _Attributes = {
        "gen_ai.operation.name": "chat" if origin.reply.chat else "text_completion",
        "gen_ai.provider.name": "legato",
        "gen_ai.request.model": origin.reply.model,
        "gen_ai.response.model": origin.reply.model,
        "gen_ai.response.id": origin.reply.id,
        "gen_ai.response.finish_reasons": origin.finish_reasons(timeline),
        "gen_ai.usage.input_tokens": len(timeline.request.prompt),
        "gen_ai.usage.output_tokens": sum(timeline.num_tokens),
        "gen_ai.usage.cache_read.input_tokens": timeline.num_cached,
        **_asked(params),
    }
    if origin.stream:
        attributes["gen_ai.request.stream"] = True
        if timeline.first_token_s is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = timeline.first_token_s - timeline.arrival_s
    if origin.context is not None:
        attributes["legato.request.id"] = origin.context.request_id
    if FinishReason.ERROR in timeline.finishes:
        attributes["error.type"] = "engine_error"
    return attributes


def _asked(params: SamplingParams) -> _Attributes:
    asked: _Attributes = {
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.max_tokens": params.max_tokens or 0,
        "gen_ai.request.seed": params.seed or 0,
        "gen_ai.request.frequency_penalty": params.frequency_penalty,
        "gen_ai.request.presence_penalty": params.presence_penalty,
    }
    if params.top_k:
        asked["gen_ai.request.top_k"] = params.top_k
    if params.n != 1:
        asked["gen_ai.request.choice.count"] = params.n
    if params.grammar is not None and params.grammar.kind.startswith("json"):
        asked["gen_ai.output.type"] = "json"
    if params.stop:
        asked["gen_ai.request.stop_sequences"] = list(params.stop)
    return asked


def _parts(timeline: Timeline) -> Iterator[tuple[str, float, float, _Attributes]]:
    """Name, begin, end and attributes of the children. One that was not reached has none; the last ends with all."""
    scheduled_s, first_s, end_s = timeline.scheduled_s, timeline.first_token_s, timeline.end_s
    yield "queue", timeline.arrival_s, end_s if scheduled_s is None else scheduled_s, {}
    if scheduled_s is not None:
        computed = len(timeline.request.prompt) - timeline.num_cached
        yield "prefill", scheduled_s, end_s if first_s is None else first_s, {"legato.computed_tokens": computed}
    if first_s is not None:
        yield "decode", first_s, end_s, {"legato.preemptions": timeline.num_preemptions}
