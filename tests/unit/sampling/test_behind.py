"""A grammar behind reasoning: what may come when."""

from legato.core.answers import Reasoning
from legato.sampling.behind import BehindReasoning

START, END, EOS, A = 1, 2, 3, 9
SIZE = 10


class OnlyA:
    """A grammar of one token."""

    vocab_size = SIZE

    def __init__(self) -> None:
        self.complete = False
        self.failure = None
        self.mask = bits(A)

    def matcher(self, end_token_ids: frozenset[int], *, may_retry: bool = False) -> "OnlyA":
        return OnlyA()

    def fits(self, token: int) -> bool:
        return token == A

    def accept(self, token: int) -> None:
        assert token == A
        self.complete = True


def bits(*ids: int) -> bytes:
    return sum(1 << id for id in ids).to_bytes(2, "little")


def test_anything_but_an_end_while_it_reasons() -> None:
    matcher = BehindReasoning(OnlyA(), Reasoning(START, END, opened=True)).matcher(frozenset({EOS, 500}))
    for token in (5, A, START, END):
        assert matcher.mask == bits(*(set(range(SIZE)) - {EOS}))
        assert not matcher.complete
        assert matcher.fits(token)
        matcher.accept(token)
    assert matcher.mask == bits(A)
    assert not matcher.fits(EOS)
    assert matcher.fits(A)
    matcher.accept(A)
    assert matcher.complete
    assert matcher.failure is None


def test_the_first_token_may_open_the_reasoning_or_begin_the_answer() -> None:
    grammar = BehindReasoning(OnlyA(), Reasoning(START, END, opened=False))
    matcher = grammar.matcher(frozenset({EOS}))
    assert matcher.mask == bits(A, START)
    matcher.accept(A)
    assert matcher.complete
    matcher = grammar.matcher(frozenset({EOS}))
    for token in (START, 7, END):
        matcher.accept(token)
    assert matcher.mask == bits(A)
    assert not matcher.complete
