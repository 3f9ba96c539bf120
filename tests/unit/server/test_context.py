"""W3C Trace Context: which headers name a parent."""

import pytest

from legato.server.context import TraceParent, parse_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_parent_is_read() -> None:
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-01".encode()) == TraceParent(TRACE, SPAN, 1)
    assert parse_traceparent(f" 00-{TRACE}-{SPAN}-00 ".encode()) == TraceParent(TRACE, SPAN, 0)


def test_later_versions_may_say_more() -> None:
    assert parse_traceparent(f"cc-{TRACE}-{SPAN}-01-what-comes".encode()) == TraceParent(TRACE, SPAN, 1)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"cc-{TRACE}-{SPAN}-01more",
        f"00-{TRACE}-{SPAN}-01\n-x",
    ],
)
def test_what_is_not_valid_names_none(header: str) -> None:
    assert parse_traceparent(header.encode()) is None
