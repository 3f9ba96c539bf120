"""API keys: which ones there are, and the gate in front of the routes."""

import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from legato.core.config import ServerConfig
from legato.core.errors import ConfigError
from legato.server.http import error_response

__all__ = ["OPEN_PATHS", "ApiKeys", "KeyGate"]

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics", "/version"})  # for load balancers and Prometheus

_LINE = re.compile(r"([0-9a-fA-F]{64})(\s.*)?")


class ApiKeys:
    """The keys that are let in, of which only the SHA-256 is kept. No keys: everybody is let in."""

    def __init__(self, digests: Iterable[bytes] = ()) -> None:
        self._digests = tuple(digests)

    @classmethod
    def load(cls, config: ServerConfig) -> "ApiKeys":
        """Keys of the configuration and of its file. ConfigError for an empty key, or names the line of the file."""
        if not all(config.api_key):
            raise ConfigError("api_key is empty")
        digests = [_digest(key.encode()) for key in config.api_key]
        if config.api_key_file is not None:
            digests += _read(Path(config.api_key_file))
        return cls(digests)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def allow(self, key: bytes) -> bool:
        """Whether this is one of the keys. The time it takes does not depend on which one, or how far it agrees."""
        digest = _digest(key)
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(digest, known)
        return found


class KeyGate:
    """Answers 401 unless a request has a key: `Authorization: Bearer KEY` or `x-api-key: KEY`, either one suffices.

    `OPEN_PATHS` need none. Whether a path exists is told only to who has a key.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = list(_given(scope["headers"]))
        if scope["path"] in OPEN_PATHS or any(self._keys.allow(key) for key in given):
            await self._app(scope, receive, send)
            return
        what = "the API key is not valid" if given else "an API key is required"
        response = error_response(
            401,
            f"{what}; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
        await response(scope, receive, send)


def _given(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    for name, value in headers:
        if name == b"x-api-key":
            yield value.strip()
        elif name == b"authorization":
            scheme, _, key = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                yield key.strip()


def _read(path: Path) -> Iterator[bytes]:
    """One SHA-256 in hexadecimal per line, perhaps with a label after it; blank lines and those with # are skipped."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ConfigError(f"api_key_file: {path}: {reason}") from error
    found = False
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _LINE.fullmatch(text)
        if match is None:
            raise ConfigError(f"api_key_file: {path}, line {number}: must start with the SHA-256 of a key, in hex")
        found = True
        yield bytes.fromhex(match[1])
    if not found:
        raise ConfigError(f"api_key_file: {path}: holds no keys")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
