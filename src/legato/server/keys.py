"""API keys: which ones there are, what each may ask for, and the gate in front of the routes."""

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legato.core.config import ServerConfig
from legato.core.errors import ConfigError
from legato.server.http import HttpError, error_response, refusal
from legato.server.limits import Account, Limits

__all__ = ["METER", "OPEN_PATHS", "ApiKeys", "KeyGate"]

METER = "legato.meter"  # where the scope of a POST has its Meter

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics", "/version"})  # for load balancers and Prometheus

_LINE = re.compile(r"([0-9a-fA-F]{64})((?:\s.*)?)")
_LIMIT = re.compile(r"([a-z_]+)=(\S*)")
_NUMBERS: Mapping[str, Callable[[str], float]] = {
    "requests_per_second": float,
    "tokens_per_minute": int,
    "concurrent_requests": int,
}


class ApiKeys:
    """The keys that are let in, of which only the SHA-256 is kept, and the account of each.

    No keys: everybody is let in, and all share one account with the limits `default`.
    """

    def __init__(
        self,
        keys: Mapping[bytes, Limits] = MappingProxyType({}),
        default: Limits | None = None,
        labels: Mapping[bytes, str] = MappingProxyType({}),
    ) -> None:
        """keys, labels: by the SHA-256, whose beginning is the name of a key without a label."""
        names = {digest: labels.get(digest) or digest.hex()[:12] for digest in keys}
        self._accounts = tuple((digest, Account(limits, name=names[digest])) for digest, limits in keys.items())
        self._shared = Account(default or Limits())

    @classmethod
    def load(cls, config: ServerConfig) -> "ApiKeys":
        """Keys of the configuration and of its file. ConfigError for an empty key, or names the line of the file."""
        if not all(config.api_key):
            raise ConfigError("api_key is empty")
        default = Limits(config.requests_per_second, config.tokens_per_minute, config.concurrent_requests)
        keys = {_digest(key.encode()): default for key in config.api_key}
        labels: dict[bytes, str] = {}
        if config.api_key_file is not None:
            for where, digest, limits, label in _read(Path(config.api_key_file), default):
                if digest in keys:
                    raise ConfigError(f"{where}: this key is given twice")
                keys[digest], labels[digest] = limits, label
        return cls(keys, default, labels)

    def __bool__(self) -> bool:
        return bool(self._accounts)

    def account(self, given: Iterable[bytes]) -> Account | None:
        """The account of the first of these keys that is let in. None: none is.

        The time it takes does not depend on which one it is, or how far a wrong one agrees.
        """
        if not self._accounts:
            return self._shared
        found = None
        for digest in map(_digest, given):
            for known, account in self._accounts:
                if hmac.compare_digest(digest, known) and found is None:
                    found = account
        return found


class KeyGate:
    """Answers 401 unless a request has a key: `Authorization: Bearer KEY` or `x-api-key: KEY`, either one suffices.

    `OPEN_PATHS` need none. Whether a path exists is told only to who has a key. Every POST counts against the limits
    of its key (429), and its answer says what is left of them.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        given = list(_given(scope["headers"]))
        account = self._keys.account(given)
        if account is not None:
            await self._admit(account, scope, receive, send)
            return
        what = "the API key is not valid" if given else "an API key is required"
        response = error_response(
            401,
            f"{what}; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
        await response(scope, receive, send)

    async def _admit(self, account: Account, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *account.headers()]
            await send(message)

        try:
            with account.request() as meter:
                await self._app({**scope, METER: meter}, receive, send_with_limits)
        except HttpError as error:
            await refusal(error)(scope, receive, send_with_limits)


def _given(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    for name, value in headers:
        if name == b"x-api-key":
            yield value.strip()
        elif name == b"authorization":
            scheme, _, key = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                yield key.strip()


def _read(path: Path, default: Limits) -> Iterator[tuple[str, bytes, Limits, str]]:
    """Where it stands, SHA-256, limits and label of each key.

    A line: the SHA-256 in hexadecimal, then words: NAME=NUMBER is a limit, all else a label. Blank lines and those
    with # are skipped.
    """
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
        where = f"api_key_file: {path}, line {number}"
        match = _LINE.fullmatch(text)
        if match is None:
            raise ConfigError(f"{where}: must start with the SHA-256 of a key, in hex")
        found = True
        try:
            words = match[2].split()
            label = " ".join(word for word in words if word != "-" and not _LIMIT.fullmatch(word))  # - is sha256sum's
            yield where, bytes.fromhex(match[1]), replace(default, **_limits(words)), label
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
    if not found:
        raise ConfigError(f"api_key_file: {path}: holds no keys")


def _limits(words: Iterable[str]) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for word in words:
        match = _LIMIT.fullmatch(word)
        if match is None:
            continue
        name, value = match.groups()
        if name not in _NUMBERS:
            raise ConfigError(f"{name} is no limit; there are {', '.join(_NUMBERS)}")
        if name in limits:
            raise ConfigError(f"{name} is given twice")
        try:
            limits[name] = _NUMBERS[name](value)
        except ValueError as error:
            raise ConfigError(f"{name} must be a number, not {value!r}") from error
    return limits


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
