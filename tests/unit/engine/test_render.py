"""The renderer on events that the HTTP tests cannot make: several tokens at once, late events, failures."""

import pytest

from legato.core.types import FinishReason, TokenEvent
from legato.engine.render import Renderer
from support.byte_level import EOS, TOKENIZER, byte_tokens
from support.driving import make_request


class Rendered:
    """A renderer with one request, and what it told the scheduler."""

    def __init__(self, **params: object) -> None:
        self.finished: list[tuple[str, int]] = []
        self.renderer = Renderer(TOKENIZER, lambda *which: self.finished.append(which))
        self.renderer.add(make_request("r", [5], ends=[EOS], max_tokens=100, **params))

    def __call__(self, text: str, **event: object) -> list[tuple[str, int, FinishReason | None]]:
        events = [TokenEvent("r", 0, tuple(byte_tokens(text)), **event)]  # type: ignore[arg-type]
        return [(o.text, o.num_tokens, o.finish) for o in self.renderer.render(events)]


def test_tokens_after_a_stop_string_in_the_same_event_do_not_count() -> None:
    r = Rendered(stop=("END",))
    assert r("abENDcdef") == [("ab", 5, FinishReason.STOP)]
    assert r.finished == [("r", 0)]
    assert r("late") == [], "computed before the scheduler knew"


def test_a_stop_string_wins_over_the_length_and_needs_no_finish() -> None:
    r = Rendered(stop=("END",))
    assert r("abEN") == [("ab", 4, None)]
    assert r("D", finish=FinishReason.LENGTH) == [("", 5, FinishReason.STOP)]
    assert r.finished == []


def test_an_unfinished_character_counts_for_a_stop_string_at_the_end() -> None:
    r = Rendered(stop=("\ufffd",))
    cut = TokenEvent("r", 0, (byte_tokens("é")[0],), finish=FinishReason.LENGTH)
    [output] = r.renderer.render([cut])
    assert (output.text, output.finish, output.stop) == ("", FinishReason.STOP, "\ufffd")


def test_the_end_token_is_billed_but_not_shown() -> None:
    r = Rendered(skip_special_tokens=False)
    [output] = r.renderer.render([TokenEvent("r", 0, (70, EOS), finish=FinishReason.STOP, stop_token=EOS)])
    assert (output.text, output.num_tokens, output.stop) == (TOKENIZER.decode([70]), 2, None)


@pytest.mark.parametrize("stop", [(), ("END",)])
def test_a_failure_ends_every_choice_once(stop: tuple[str, ...]) -> None:
    r = Rendered(n=3, temperature=1.0, stop=stop)
    r("abc", finish=FinishReason.LENGTH)
    failed = r.renderer.fail("broken")
    assert [(o.choice, o.finish, o.error) for o in failed] == [(c, FinishReason.ERROR, "broken") for c in (1, 2)]
    assert r.renderer.fail("again") == []
