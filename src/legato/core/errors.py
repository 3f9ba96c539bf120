"""Errors that a user can cause. Each message is one line that names the field, file or tensor at fault."""

__all__ = ["CheckpointError", "ConfigError", "EngineError", "LegatoError", "QueueFullError", "RequestError"]


class LegatoError(Exception):
    """Base of all errors that are reported to the user without a traceback."""


class ConfigError(LegatoError):
    """A flag or setting is wrong, or names something that is not built: the start ends with exit status 2."""


class CheckpointError(LegatoError):
    """A model file is missing, damaged or not understood. The message names the file and the tensor or key."""


class RequestError(LegatoError):
    """A request is refused before it is scheduled (HTTP 400)."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class EngineError(LegatoError):
    """A request failed after it was accepted, through no fault of its own (HTTP 500)."""


class QueueFullError(LegatoError):
    """The engine does not take the request now (HTTP 429 when full, 503 when loading, draining or dead)."""

    def __init__(self, message: str, *, status: int = 429, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
