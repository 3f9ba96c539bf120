"""OpenAI's error object, and which status each of our errors gets."""

from http import HTTPStatus
from math import ceil
from typing import Any

from legato.core.errors import EngineError, LegatoError, QueueFullError, RequestError
from legato.protocol.responses import dump

__all__ = ["describe", "error_body", "error_frame"]

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


def error_body(status: int, message: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """{"error": {message, type, param, code}}."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def describe(error: Exception) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and extra headers for an exception. What is not ours is told as an internal error, no more."""
    if isinstance(error, RequestError):
        status = HTTPStatus.NOT_FOUND if error.code == "model_not_found" else HTTPStatus.BAD_REQUEST
        return status, error_body(status, str(error), param=error.param, code=error.code), {}
    if isinstance(error, QueueFullError):
        headers = {"retry-after": str(max(1, ceil(error.retry_after_s)))}
        code = "queue_full" if error.status == HTTPStatus.TOO_MANY_REQUESTS else "unavailable"
        return error.status, error_body(error.status, str(error), code=code), headers
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    if isinstance(error, EngineError):
        return status, error_body(status, str(error), code="engine_error"), {}
    return status, error_body(status, "internal error; the server's log says more", code="internal_error"), {}


def error_frame(error: LegatoError) -> bytes:
    """An error after the stream began: one event with the error object that it would have had as an answer."""
    _, body, _ = describe(error)
    return b"data: " + dump(body) + b"\n\n"
