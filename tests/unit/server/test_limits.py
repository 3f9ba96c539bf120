"""Limits of a key: rates hold over any stretch of time, and who waits as long as he was told is admitted."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.core.config import ServerConfig
from legato.core.errors import ConfigError
from legato.server.http import HttpError
from legato.server.keys import ApiKeys
from legato.server.limits import Account, Limits


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def send(account: Account, estimate: int = 0, used: int = 0) -> None:
    with account.request() as meter:
        meter.reserve(estimate)
        meter.used = used


def wait_of(error: HttpError) -> float:
    assert error.headers is not None
    return int(error.headers["retry-after-ms"]) / 1000


def refused(account: Account, estimate: int = 0) -> float:
    """Seconds to wait, as the refusal says."""
    with pytest.raises(HttpError) as caught:
        send(account, estimate)
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    assert caught.value.headers is not None
    wait_s = wait_of(caught.value)
    assert wait_s <= int(caught.value.headers["retry-after"]) < wait_s + 1 or wait_s < 1
    return wait_s


def headers(account: Account) -> dict[str, str]:
    return {name.decode().removeprefix("x-ratelimit-"): value.decode() for name, value in account.headers()}


def test_no_limits_refuse_nothing_and_say_nothing() -> None:
    account = Account(Limits())
    for _ in range(100):
        send(account, 10**9, 10**9)
    assert account.headers() == []


def test_requests_per_second() -> None:
    clock = Clock()
    account = Account(Limits(requests_per_second=4), clock)
    for left in (3, 2, 1, 0):
        send(account)
        assert headers(account)["remaining-requests"] == str(left)
    assert headers(account) == {"limit-requests": "4", "remaining-requests": "0", "reset-requests": "1s"}
    assert refused(account) == 0.25
    clock.now_s += 0.25
    send(account)
    assert refused(account) == 0.25


def test_less_than_one_request_per_second() -> None:
    clock = Clock()
    account = Account(Limits(requests_per_second=0.01), clock)
    send(account)
    assert headers(account)["reset-requests"] == "1m40s"
    assert refused(account) == 100
    clock.now_s += 100
    send(account)


def test_an_estimate_is_corrected_when_the_request_ends() -> None:
    clock = Clock()
    account = Account(Limits(tokens_per_minute=600), clock)
    with account.request() as meter:
        meter.reserve(500)
        assert headers(account) == {"limit-tokens": "600", "remaining-tokens": "100", "reset-tokens": "50s"}
        meter.used = 80
    assert headers(account)["remaining-tokens"] == "520"
    send(account, 10, 720)  # an answer longer than was thought: the debt is waited off
    assert refused(account, 100) == 30
    clock.now_s += 30
    send(account, 100)


def test_a_request_that_fails_is_given_its_tokens_back() -> None:
    account = Account(Limits(tokens_per_minute=600, concurrent_requests=1), Clock())
    with account.request() as meter:
        meter.reserve(600)
    send(account, 600)


def test_a_request_larger_than_a_minute_of_tokens_runs_when_nothing_else_did() -> None:
    clock = Clock()
    account = Account(Limits(tokens_per_minute=60), clock)
    send(account, 100, 100)
    assert refused(account, 1) == 41
    assert refused(account, 1000) == 100
    clock.now_s += 100
    send(account, 1000)


def test_concurrent_requests() -> None:
    account = Account(Limits(concurrent_requests=2))
    with account.request(), account.request():
        assert refused(account) >= 1
    send(account)


def test_what_is_refused_takes_nothing() -> None:
    clock = Clock()
    account = Account(Limits(requests_per_second=2, tokens_per_minute=60, concurrent_requests=1), clock)
    with account.request():
        for _ in range(10):
            refused(account)
    assert headers(account)["remaining-requests"] == "1"
    assert headers(account)["remaining-tokens"] == "60"


@given(
    rate=st.floats(0.01, 1e4),
    per_minute=st.integers(1, 10**6),
    asks=st.lists(st.tuples(st.floats(0, 100), st.integers(1, 2 * 10**5), st.integers(0, 2 * 10**5)), max_size=40),
)
def test_rates_hold_and_waits_are_honest(rate: float, per_minute: int, asks: list[tuple[float, int, int]]) -> None:
    clock = Clock()
    began_s = clock.now_s
    account = Account(Limits(requests_per_second=rate, tokens_per_minute=per_minute), clock)
    admitted, used, largest = 0, 0, 0
    for pause_s, estimate, real in asks:
        clock.now_s += pause_s
        for _ in range(3):  # once for requests, once for tokens, then it is admitted
            try:
                send(account, estimate, real)
            except HttpError as error:
                clock.now_s += wait_of(error)
                continue
            admitted, used, largest = admitted + 1, used + real, max(largest, real)
            break
        else:
            raise AssertionError("refused after the wait that it was told")
        elapsed_s = clock.now_s - began_s
        assert admitted <= max(1, rate) + elapsed_s * rate * (1 + 1e-6) + 1 + 1e-6
        assert used - largest <= per_minute + elapsed_s * per_minute / 60 * (1 + 1e-6) + largest


DIGEST = "ab" * 32
OTHER = "cd" * 32


def load(tmp_path: Path, text: str, **flags: float) -> ApiKeys:
    path = tmp_path / "keys"
    path.write_text(text)
    return ApiKeys.load(ServerConfig(api_key_file=str(path), **flags))  # type: ignore[arg-type]


def test_lines_of_the_key_file_have_limits(tmp_path: Path) -> None:
    text = f"{DIGEST} team blue tokens_per_minute=9 requests_per_second=0.5\n{OTHER} concurrent_requests=3 x == y\n"
    keys = load(tmp_path, text, tokens_per_minute=7, concurrent_requests=2)
    limits = [account.limits for _, account in keys._accounts]
    assert limits == [Limits(0.5, 9, 2), Limits(None, 7, 3)]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("tokens_per_minute=x", "tokens_per_minute must be a number, not 'x'"),
        ("tokens_per_minute=1.5", "tokens_per_minute must be a number"),
        ("tokens_per_minute=0", "tokens_per_minute must be at least 1"),
        ("requests_per_second=nan", "requests_per_second must be above 0"),
        ("requests_per_second=inf", "requests_per_second must be above 0"),
        ("concurrent_requests=", "concurrent_requests must be a number"),
        ("concurrent_requests=1 concurrent_requests=2", "concurrent_requests is given twice"),
        ("tokens_per_second=3", "tokens_per_second is no limit; there are requests_per_second"),
    ],
)
def test_bad_limits_are_named_with_their_line(tmp_path: Path, words: str, what: str) -> None:
    with pytest.raises(ConfigError, match=f"line 2: {what}"):
        load(tmp_path, f"# keys\n{DIGEST} {words}\n")


def test_one_key_has_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 2: this key is given twice"):
        load(tmp_path, f"{DIGEST} concurrent_requests=1\n{DIGEST.upper()} concurrent_requests=2\n")


def test_bad_default_limits_are_named() -> None:
    with pytest.raises(ConfigError, match="requests_per_second must be above 0, not 0"):
        ApiKeys.load(ServerConfig(requests_per_second=0))
