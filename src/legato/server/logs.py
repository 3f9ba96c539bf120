"""Log lines: text for people, or one JSON object each for machines. Neither holds text of prompts or answers."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from legato.server.context import CURRENT

__all__ = ["JsonFormatter", "event_fields", "set_up_logging"]

_PROBES = frozenset({"/health", "/ready", "/metrics"})


def set_up_logging(level: str, format: str) -> None:
    """Send the logs of this process to stderr. level: debug, info, warning or error; format: text or json."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if format == "json" else logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
    )
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in ("asyncio", "uvicorn.error"):  # their notes on starting and stopping repeat ours
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    logging.getLogger("uvicorn.access").addFilter(_not_a_probe)


def event_fields(**fields: Any) -> dict[str, Any]:
    """For `extra=`: what a JSON line holds beside the message. Values are what JSON knows."""
    return {"fields": fields}


class JsonFormatter(logging.Formatter):
    """time (UTC), level, logger, message; the request's ids where there is one; what else the event has.

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
            if context.trace is not None:
                line["trace_id"] = context.trace.trace_id
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


def _not_a_probe(record: logging.LogRecord) -> bool:
    """Access log lines without those of load balancers and Prometheus."""
    path = record.args[2] if isinstance(record.args, tuple) and len(record.args) > 2 else ""
    return path not in _PROBES
