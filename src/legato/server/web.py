"""What browsers, TLS and proxies need around the routes."""

import ssl
from pathlib import Path
from typing import Any

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from legato.core.config import WebConfig
from legato.core.errors import ConfigError

__all__ = ["ByPort", "RootPath", "cors", "tls_options"]

EXPOSED = (  # headers that pages may read
    *("x-request-id", "x-legato-ignored-fields", "retry-after", "retry-after-ms"),
    *(f"x-ratelimit-{what}-requests" for what in ("limit", "remaining", "reset")),
    *(f"x-ratelimit-{what}-tokens" for what in ("limit", "remaining", "reset")),
)


def cors(config: WebConfig) -> list[Middleware]:
    """Answers for browsers on pages of other origins; nothing without allowed origins."""
    if not config.allowed_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=config.allowed_origins,
            allow_methods=config.allowed_methods,
            allow_headers=config.allowed_headers,
            allow_credentials=config.allow_credentials,
            expose_headers=EXPOSED,
        )
    ]


def tls_options(config: WebConfig) -> dict[str, Any]:
    """uvicorn's options for TLS, none where it is off. ConfigError names the file that cannot be used."""
    if config.ssl_certfile is None:
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    key = config.ssl_keyfile or config.ssl_certfile
    try:
        context.load_cert_chain(_readable("ssl_certfile", config.ssl_certfile), _readable("ssl_keyfile", key), _nothing)
    except ssl.SSLError as error:
        raise ConfigError(f"ssl_certfile: {config.ssl_certfile} with key {key}: {error.reason or error}") from error
    if config.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(_readable("ssl_ca_certs", config.ssl_ca_certs))
        except ssl.SSLError as error:
            raise ConfigError(f"ssl_ca_certs: {config.ssl_ca_certs}: {error.reason or error}") from error
    return {
        "ssl_certfile": config.ssl_certfile,
        "ssl_keyfile": config.ssl_keyfile,
        "ssl_ca_certs": config.ssl_ca_certs,
        "ssl_cert_reqs": config.ssl_cert_reqs,
    }


def _readable(name: str, path: str) -> str:
    try:
        with Path(path).open("rb"):
            return path
    except OSError as error:
        raise ConfigError(f"{name}: {path}: {error.strerror}") from error


def _nothing() -> str:
    """The passphrase of an encrypted key. Without it OpenSSL would ask the terminal."""
    return ""


class RootPath:
    """Serves the same under a prefix that a proxy in front may or may not strip."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path.startswith(f"{self._prefix}/"):
            scope = {**scope, "path": path.removeprefix(self._prefix)}
        await self._app(scope, receive, send)


class ByPort:
    """One application for the requests that come to the admin port, another for all others."""

    def __init__(self, public: ASGIApp, admin: ASGIApp, admin_port: int) -> None:
        self._public = public
        self._admin = admin
        self._admin_port = admin_port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        here = scope["server"][1] == self._admin_port
        await (self._admin if here else self._public)(scope, receive, send)
