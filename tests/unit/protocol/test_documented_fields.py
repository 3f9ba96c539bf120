"""P5: docs/api.md names every field, those that work, those without effect and those that are refused."""

import re
from pathlib import Path

import pytest

from legato.protocol import chat, completion
from legato.protocol.parse import Accepted

PAGE = (Path(__file__).parents[3] / "docs" / "api.md").read_text()


def part(begin: str, end: str) -> set[str]:
    """Names in code between two lines of the page."""
    return set(re.findall(r"[a-z_][a-z0-9_]*", " ".join(re.findall(r"`([^`]+)`", PAGE.split(begin)[1].split(end)[0]))))


WORK = part("**They work:**", "**They are accepted")
WITHOUT_EFFECT = part("**They are accepted", "**They are refused")
REFUSED = part("**They are refused", "Types are strict")


@pytest.mark.parametrize("body", [completion.CompletionBody, chat.ChatBody])
def test_fields_of_the_bodies(body: type[Accepted]) -> None:
    own = set(body.model_fields) - set(Accepted.model_fields)
    assert own - WORK == set()
    assert set(Accepted.model_fields) - WITHOUT_EFFECT == set()


def test_fields_that_are_refused() -> None:
    names = {*completion._REFUSED, *chat._REFUSED}
    assert names - REFUSED == set()
    assert not names & (set(completion.CompletionBody.model_fields) & set(chat.ChatBody.model_fields))
