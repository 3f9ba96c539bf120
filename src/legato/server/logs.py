"""Log lines: text for people, or one JSON object each for machines. Neither holds text of prompts or answers."""

import json
import logging
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from legato.engine.timeline import Timeline
from legato.server.context import CURRENT, Origin

__all__ = ["JsonFormatter", "RequestLog", "set_up_logging"]

log = logging.getLogger(__name__)


def set_up_logging(level: str, format: str, quiet: Iterable[str] = ("/health", "/ready", "/metrics")) -> None:
    """Send the logs of this process to stderr. level: debug, info, warning or error; format: text or json.

    quiet: paths, several perhaps in one text with commas between, whose requests have no line of the access log.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if format == "json" else logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
    )
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in ("asyncio", "uvicorn.error"):  # their notes on starting and stopping repeat ours
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    hidden = frozenset(path for paths in quiet for path in paths.split(","))

    def is_shown(record: logging.LogRecord) -> bool:
        path = record.args[2] if isinstance(record.args, tuple) and len(record.args) > 2 else ""
        return str(path).partition("?")[0] not in hidden

    logging.getLogger("uvicorn.access").addFilter(is_shown)


class JsonFormatter(logging.Formatter):
    """time (UTC), level, logger, message; the request's ids where there is one; what else the record has as `fields`.

    Fields of uvicorn's access log are told apart; the query of a URL is left out, since it may hold secrets.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (context := CURRENT.get()) is not None:
            line["request_id"] = context.request_id
            if context.trace_id is not None:
                line["trace_id"] = context.trace_id
        if record.name == "uvicorn.access":
            line.update(_access(record))
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _access(record: logging.LogRecord) -> dict[str, Any]:
    if not isinstance(record.args, tuple) or len(record.args) != 5:
        return {}
    client, method, path, version, status = record.args
    path = str(path).partition("?")[0]
    return {
        "message": f"{method} {path} {status}",
        "client": client,
        "method": method,
        "path": path,
        "http_version": version,
        "status": status,
    }


class RequestLog:
    """A `Sink` of the telemetry thread: a line for each request that has ended, with tokens and times."""

    def take(self, origin: Origin, timeline: Timeline) -> None:
        fields = _ended(origin, timeline)
        tokens = f"{fields['prompt_tokens']} + {fields['output_tokens']} tokens"
        log.info(
            "request %s ended: %s, %s in %.3f s",
            fields.get("request_id", fields["response_id"]),
            ", ".join(fields["finish_reasons"]),
            tokens,
            fields["duration_s"],
            extra={"fields": fields},
        )

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing takes long."""


def _ended(origin: Origin, timeline: Timeline) -> dict[str, Any]:
    """Fields of a request's line; what it never came to is left out."""
    arrival_s, scheduled_s, first_s = timeline.arrival_s, timeline.scheduled_s, timeline.first_token_s
    context = origin.context
    fields = {
        "request_id": context.request_id if context else None,
        "trace_id": context.trace_id if context else None,
        "response_id": origin.reply.id,
        "model": origin.reply.model,
        "stream": origin.stream,
        "finish_reasons": origin.finish_reasons(timeline),
        "prompt_tokens": len(timeline.request.prompt),
        "cached_tokens": timeline.num_cached,
        "output_tokens": sum(timeline.num_tokens),
        "preemptions": timeline.num_preemptions,
        "queue_s": None if scheduled_s is None else round(scheduled_s - arrival_s, 6),
        "first_token_s": None if first_s is None else round(first_s - arrival_s, 6),
        "duration_s": round(timeline.end_s - arrival_s, 6),
        "error": timeline.error,
    }
    return {name: value for name, value in fields.items() if value is not None}
