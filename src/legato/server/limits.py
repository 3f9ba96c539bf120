"""What one key may ask for: requests per second, tokens per minute, requests at once. Buckets with a given clock."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from legato.core.errors import ConfigError
from legato.server.http import HttpError

__all__ = ["Account", "Limits", "Meter", "TokenBucket"]

MAX_PRECISE_S = 1e9  # of any wait; keeps headers finite


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one key; None: no limit. ConfigError for one that lets nothing through."""

    requests_per_second: float | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None

    def __post_init__(self) -> None:
        rate = self.requests_per_second
        if rate is not None and not 0 < rate < math.inf:
            raise ConfigError(f"requests_per_second must be above 0, not {rate}")
        for name in ("tokens_per_minute", "concurrent_requests"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")


class TokenBucket:
    """Holds up to `capacity`, starts full, and refills at `rate` per second. Below zero it is in debt."""

    def __init__(self, rate: float, capacity: float, clock: Callable[[], float]) -> None:
        self.capacity = capacity
        self._rate = rate
        self._clock = clock
        self._level = capacity
        self._at = clock()

    def level(self) -> float:
        now = self._clock()
        self._level = min(self.capacity, self._level + (now - self._at) * self._rate)
        self._at = now
        return self._level

    def wait_s(self, amount: float) -> float:
        """Seconds until `amount` is there, or until the bucket is full where it never holds so much; 0: now."""
        missing = min(amount, self.capacity) - self.level()
        # A refill is a sum of rounded floats; without the slack, who waits as long as he was told comes a hair early.
        return 0.0 if missing <= 1e-9 * self.capacity else min(missing / self._rate, MAX_PRECISE_S)

    def take(self, amount: float) -> None:
        """Take `amount`, whether it is there or not; a negative one is given back."""
        self._level = min(self.capacity, self.level() - amount)


class Meter:
    """One open request, and what it is charged. `used` counts its tokens, prompt and answer, as far as known."""

    def __init__(self, account: "Account") -> None:
        self.used = 0
        self._account = account
        self._reserved = 0
        self._open = True

    @property
    def key_name(self) -> str:
        return self._account.name

    def reserve(self, estimate: int) -> None:
        """Charge an estimate of the tokens, before work starts. HttpError (429) when they are not there."""
        self._account.reserve_tokens(estimate)
        self._reserved = estimate

    def close(self) -> None:
        """Correct the estimate to what was used, and leave the place to the next request. Once: later calls do nothing.

        Called before the client can read the end of its answer, so that it may send the next request at once.
        """
        if self._open:
            self._open = False
            self._account.leave(self.used - self._reserved)


class Account:
    """The state of one key's limits. Used in the event loop only.

    A request takes one place and one of the requests while it is open, and tokens: an estimate when it is admitted,
    corrected when it ends. One that asks for more than a whole minute's tokens is admitted to a full bucket, and the
    debt is waited off by those that come after it.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic, name: str = "") -> None:
        """name: of the key; not the key itself."""
        self.limits = limits
        self.name = name
        rate, tokens = limits.requests_per_second, limits.tokens_per_minute
        self._requests = None if rate is None else TokenBucket(rate, max(1.0, rate), clock)
        self._tokens = None if tokens is None else TokenBucket(tokens / 60, tokens, clock)
        self._open = 0

    @contextmanager
    def request(self) -> Iterator[Meter]:
        """One request, from admission to the end of its answer. HttpError (429) when it is not admitted."""
        most = self.limits.concurrent_requests
        if most is not None and self._open >= most:
            raise _refusal(f"{self._open} requests of this key are open, and no more may be", 1.0)
        if self._requests is not None:
            wait_s = self._requests.wait_s(1)
            if wait_s:
                raise _refusal(f"this key may send {self.limits.requests_per_second:g} requests per second", wait_s)
            self._requests.take(1)
        self._open += 1
        meter = Meter(self)
        try:
            yield meter
        finally:
            meter.close()

    def reserve_tokens(self, estimate: int) -> None:
        if self._tokens is None:
            return
        wait_s = self._tokens.wait_s(estimate)
        if wait_s:
            if self._requests is not None:
                self._requests.take(-1)  # what is refused takes nothing, or the wait would not be honest
            limit = f"this key may use {self.limits.tokens_per_minute} tokens per minute"
            left = max(0, math.floor(self._tokens.level()))
            raise _refusal(f"{limit}; {left} are left now, and this request needs about {estimate}", wait_s)
        self._tokens.take(estimate)

    def leave(self, tokens: int) -> None:
        """A request has ended; `tokens`, perhaps below 0, are charged beyond what it had reserved."""
        self._open -= 1
        if self._tokens is not None:
            self._tokens.take(tokens)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """OpenAI's headers on limits: how much, how much is left, and how long until all is left again."""
        named = (("requests", self._requests), ("tokens", self._tokens))
        return [
            (f"x-ratelimit-{what}-{name}".encode(), value.encode())
            for name, bucket in named
            if bucket is not None
            for what, value in (
                ("limit", str(math.floor(bucket.capacity))),
                ("remaining", str(max(0, math.floor(bucket.level() + 1e-6)))),
                ("reset", _duration(bucket.wait_s(bucket.capacity))),
            )
        ]


def _refusal(message: str, wait_s: float) -> HttpError:
    """429. `retry-after` is in whole seconds, `retry-after-ms` is what OpenAI's clients read first."""
    headers = {"retry-after": str(max(1, math.ceil(wait_s))), "retry-after-ms": str(math.ceil(wait_s * 1000))}
    return HttpError(429, message, code="rate_limit_exceeded", headers=headers)


def _duration(seconds: float) -> str:
    """As OpenAI writes it: 17ms, 1s, 6m0s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
