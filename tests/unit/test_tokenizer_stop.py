"""Stop strings: nothing of them leaks, nothing beside them is lost, however the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.tokenizer.stop import StopFinder


def run(stops: tuple[str, ...], pieces: list[str], *, include: bool = False) -> tuple[str, str | None]:
    finder = StopFinder(stops, include)
    shown = ""
    for piece in pieces:
        safe, stop = finder.push(piece)
        shown += safe
        if stop is not None:
            return shown + finder.finish(), stop
    return shown + finder.finish(), None


def oracle(stops: tuple[str, ...], text: str, *, include: bool) -> tuple[str, str | None]:
    """The match that ends first, the longest of those; by looking at every prefix of the whole text."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


TEXT = st.text("ab<", max_size=30)
STOPS = st.lists(st.text("ab<", min_size=1, max_size=6), max_size=4, unique=True).map(tuple)


@given(stops=STOPS, pieces=st.lists(TEXT, max_size=8), include=st.booleans())
def test_a01_a02_any_cut_equals_the_whole_text(stops: tuple[str, ...], pieces: list[str], include: bool) -> None:
    assert run(stops, pieces, include=include) == oracle(stops, "".join(pieces), include=include)


@given(stops=STOPS, pieces=st.lists(TEXT, max_size=8))
def test_a01_holds_back_exactly_what_may_become_a_stop(stops: tuple[str, ...], pieces: list[str]) -> None:
    finder = StopFinder(stops, False)
    text = shown = ""
    for piece in pieces:
        safe, stop = finder.push(piece)
        if stop is not None:
            return
        text, shown = text + piece, shown + safe
        held = max((n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0)
        assert shown == text[: len(text) - held]


def test_a01_stop_over_three_tokens_does_not_leak() -> None:
    finder = StopFinder(("\nUser:",), False)
    assert finder.push("Paris.\nU") == ("Paris.", None)
    assert finder.push("se") == ("", None)
    assert finder.push("r: next") == ("", "\nUser:")
    assert finder.finish() == ""


def test_a01_stop_inside_tokens() -> None:
    assert run(("STOP",), ["one ST", "OP two"]) == ("one ", "STOP")
    assert run(("STOP",), ["one ST", "OP two"], include=True) == ("one STOP", "STOP")


def test_a02_held_text_is_released() -> None:
    assert run(("ABCD",), ["x", "AB"]) == ("xAB", None)
    assert run(("ABCD",), list("ABABCD")) == ("AB", "ABCD")


def test_first_complete_match_wins() -> None:
    assert run(("abcd", "bc"), ["abcd"]) == ("a", "bc")
    assert run(("b", "ab"), ["xab"]) == ("x", "ab")


def test_no_stops_hold_nothing() -> None:
    assert StopFinder((), False).push("text") == ("text", None)


def test_empty_stop_and_late_push_are_errors() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopFinder(("",), False)
    finder = StopFinder(("a",), False)
    finder.push("a")
    with pytest.raises(RuntimeError):
        finder.push("b")
