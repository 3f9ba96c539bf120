"""Whose request it is, for the policy `fair`: a name from a header that a gateway sets, or that of the API key."""

from dataclasses import replace

from starlette.requests import Request as HttpRequest

from legato.core.config import ServeConfig
from legato.core.errors import ConfigError, RequestError
from legato.server.generate import Generation
from legato.server.limits import Meter

__all__ = ["MAX_TENANT", "check_tenants", "of_tenant"]

MAX_TENANT = 128  # characters


def check_tenants(config: ServeConfig) -> None:
    """ConfigError for a header that nothing would read."""
    if config.server.tenant_header is not None and config.engine.scheduler.policy != "fair":
        raise ConfigError("tenant_header needs policy fair")


def of_tenant(generation: Generation, http: HttpRequest, meter: Meter, header: str | None) -> Generation:
    """The same, as a request of its tenant. RequestError for a header that is no name."""
    name = http.headers.get(header) if header else None
    if name is not None and not (0 < len(name) <= MAX_TENANT and name.isascii() and name.isprintable()):
        raise RequestError(f"{header} must be 1 to {MAX_TENANT} printable ASCII characters", code="invalid_header")
    tenant = meter.key_name if name is None else name
    if not tenant:
        return generation
    requests = [replace(r, service=replace(r.service, tenant=tenant)) for r in generation.requests]
    return replace(generation, requests=requests)
