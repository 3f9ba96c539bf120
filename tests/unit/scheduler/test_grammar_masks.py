"""What a grammar does to a sequence: a mask on each sampled row, an end where nothing can follow."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.core.errors import RequestError
from legato.core.grammar import Grammar
from legato.core.types import CacheGroup, FinishReason, Request, SlotReset
from legato.scheduler.commit import end_without_token
from legato.scheduler.state import Event
from support.driving import drive, make_request, scheduler_for
from support.oracles import assert_roomy_is_starved
from support.scripted import AnswerAll, ScriptedExecutor

VOCAB = 100
END = 2


def mask_of(*tokens: int) -> bytes:
    return sum(1 << token for token in set(tokens)).to_bytes((VOCAB + 7) // 8, "little")


@dataclass
class Steps:
    """A grammar that allows `allowed[i]` at step i, is complete behind the last, may end where END is there.

    Its masks wait at the steps in `waits`, where they may.
    """

    allowed: tuple[tuple[int, ...], ...]
    breaks_at: int = -1
    waits: frozenset[int] = frozenset()
    matchers: list["StepMatcher"] = field(default_factory=list)
    max_tokens: list[int | None] = field(default_factory=list)
    may_retry: list[bool] = field(default_factory=list)

    def matcher(
        self, end_token_ids: frozenset[int], max_tokens: int | None = None, *, may_retry: bool = False
    ) -> "StepMatcher":
        self.max_tokens.append(max_tokens)
        self.may_retry.append(may_retry)
        self.matchers.append(StepMatcher(self, end_token_ids, self.waits if may_retry else frozenset()))
        return self.matchers[-1]


class StepMatcher:
    def __init__(self, grammar: Steps, ends: frozenset[int], waits: frozenset[int]) -> None:
        self._grammar, self._ends, self._waits = grammar, ends, waits
        self.accepted: list[int] = []
        self.complete = False
        self.failure: str | None = None
        self.refused: list[int] = []

    @property
    def mask(self) -> bytes | None:
        return None if len(self.accepted) in self._waits else self._mask

    @property
    def _mask(self) -> bytes:
        now = self._grammar.allowed[len(self.accepted)]
        return mask_of(*(token for token in now if token != END), *(self._ends if END in now else ()))

    def fits(self, token: int) -> bool:
        if self._mask[token // 8] >> token % 8 & 1:
            return True
        if self.mask is None:
            self.refused.append(token)
        self._waits -= {len(self.accepted)}
        if len(self.accepted) + 1 == self._grammar.breaks_at:
            self.failure = "it broke"
        return False

    def accept(self, token: int) -> None:
        assert self._mask[token // 8] >> token % 8 & 1, "a token that the mask does not allow"
        self.accepted.append(token)
        self.complete = len(self.accepted) == len(self._grammar.allowed)
        if len(self.accepted) == self._grammar.breaks_at:
            self.failure = "it broke"


def with_grammar(request: Request, grammar: Steps) -> Request:
    return replace(request, params=replace(request.params, grammar=Grammar("regex", "a")), grammar=grammar)


def run(request: Request, answer: tuple[int, ...] = (), **executor: object):
    fake = ScriptedExecutor(vocab_size=VOCAB, emit=AnswerAll(answer, then=50), **executor)  # type: ignore[arg-type]
    return drive(scheduler_for(fake), fake, [request]), fake


def test_every_sampled_row_has_its_mask_and_no_other_row_has_one() -> None:
    grammar = Steps(((10, 11), (12,), (13, 14)))
    fake = ScriptedExecutor(vocab_size=VOCAB, emit=AnswerAll((11, 50, 14), then=50))
    free = make_request("free", range(3), max_tokens=5, seed=1)
    bound = with_grammar(make_request("bound", range(40), max_tokens=9, ends={END}, seed=2), grammar)
    outcomes = drive(scheduler_for(fake, long_prefill_token_threshold=16), fake, [free, bound])
    assert outcomes["bound", 0].tokens == [11, 12, 14]
    assert outcomes["bound", 0].finish is FinishReason.STOP
    assert outcomes["bound", 0].stop_token is None, "the last token is text, not an end token"
    assert outcomes["free", 0].finish is FinishReason.LENGTH
    masks = [plan.masks for plan in fake.plans]
    assert masks == [
        (),
        (),
        (mask_of(10, 11),),
        (
            mask_of(
                12,
            ),
        ),
        (mask_of(13, 14),),
    ]
    assert [list(plan.out_masks) for plan in fake.plans] == [[], [], [-1, 0], [-1, 0], [-1, 0]]


def test_an_end_token_ends_the_answer_and_the_matcher_does_not_see_it() -> None:
    grammar = Steps(((10,), (11, END), (12,)))
    outcomes, _ = run(with_grammar(make_request("r", [1], max_tokens=9, ends={END}), grammar), (10, END))
    assert (outcomes["r", 0].tokens, outcomes["r", 0].stop_token) == ([10, END], END)
    assert grammar.matchers[0].accepted == [10]


def test_ignore_eos_goes_on_as_long_as_something_can_follow() -> None:
    grammar = Steps(((10,), (11, END), (12,)))
    outcomes, _ = run(with_grammar(make_request("r", [1], max_tokens=9, ignore_eos=True), grammar), (10, END))
    assert outcomes["r", 0].tokens == [10, 11, 12]
    assert outcomes["r", 0].finish is FinishReason.STOP


def test_the_grammar_ends_the_answer_before_min_tokens() -> None:
    grammar = Steps(((10,), (11,)))
    outcomes, _ = run(with_grammar(make_request("r", [1], max_tokens=9, min_tokens=5, ends={END}), grammar))
    assert outcomes["r", 0].tokens == [10, 11]
    assert outcomes["r", 0].finish is FinishReason.STOP


def test_max_tokens_ends_an_answer_that_the_grammar_does_not() -> None:
    outcomes, _ = run(with_grammar(make_request("r", [1], max_tokens=2, ends={END}), Steps(((10,), (11,), (12,)))))
    assert outcomes["r", 0].tokens == [10, 11]
    assert outcomes["r", 0].finish is FinishReason.LENGTH


def test_an_answer_that_is_complete_with_its_last_token_is_no_length() -> None:
    outcomes, _ = run(with_grammar(make_request("r", [1], max_tokens=2, ends={END}), Steps(((10,), (11,)))))
    assert outcomes["r", 0].finish is FinishReason.STOP


def test_a_matcher_that_breaks_ends_its_sequence_only() -> None:
    fake = ScriptedExecutor(vocab_size=VOCAB, emit=AnswerAll((), then=50))
    broken = with_grammar(make_request("broken", [1], max_tokens=5), Steps(((10,), (11,), (12,)), breaks_at=2))
    other = make_request("other", [2], max_tokens=5, seed=9)
    outcomes = drive(scheduler_for(fake), fake, [broken, other])
    assert (outcomes["broken", 0].finish, outcomes["broken", 0].error) == (FinishReason.ERROR, "it broke")
    assert outcomes["broken", 0].error_param == "grammar"
    assert outcomes["other", 0].finish is FinishReason.LENGTH


def test_where_other_fields_leave_nothing_the_error_says_so() -> None:
    grammar = Steps(((10,), ()))
    outcomes, _ = run(with_grammar(make_request("r", [1], max_tokens=5), grammar))
    assert outcomes["r", 0].finish is FinishReason.ERROR
    assert "grammar allows none" in (outcomes["r", 0].error or "")


def test_choices_have_matchers_of_their_own_made_when_they_are_admitted() -> None:
    grammar = Steps(((10, 20), (11, 21)))
    fake = ScriptedExecutor(vocab_size=VOCAB, emit=lambda history, params, seen: 10 if params.choice % 2 else 20)
    scheduler = scheduler_for(fake, max_num_seqs=2)
    scheduler.add(with_grammar(make_request("r", [1], n=3, max_tokens=5, temperature=1.0), grammar))
    assert grammar.matchers == []
    outcomes = drive(scheduler, fake)
    assert [outcomes["r", choice].tokens for choice in range(3)] == [[20, 21], [10, 11], [20, 21]]
    assert len(grammar.matchers) == 3


@pytest.mark.parametrize("num_blocks", [7, 9])
def test_c03_preempted_sequences_keep_their_matchers(num_blocks: int) -> None:
    """C03: guided answers are the same with and without preemptions; nothing is accepted twice."""
    grammars: list[Steps] = []

    def make(blocks: int):
        executor = ScriptedExecutor(num_blocks=blocks, block_size=4, vocab_size=VOCAB, max_position=29)
        return scheduler_for(executor, long_prefill_token_threshold=5, max_num_batched_tokens=16), executor

    def requests() -> list[Request]:
        made = []
        for i in range(6):
            grammars.append(Steps(tuple(tuple(range(10 + i, 90, 3 + step)) for step in range(18))))
            plain = make_request(f"r{i}", range(i, i + 2 + i), max_tokens=20, seed=i)
            made.append(with_grammar(plain, grammars[-1]))
        return made

    assert_roomy_is_starved(lambda: make(1000), lambda: make(num_blocks), requests())
    assert all(len(matcher.accepted) == 18 for grammar in grammars for matcher in grammar.matchers)


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [
        ({"max_tokens": 7}, 7),
        ({"max_tokens": 90}, 39),
        ({"ignore_eos": True}, None),
        ({"min_tokens": 1}, None),
        ({"allowed_token_ids": (10,)}, None),
    ],
)
def test_a_matcher_knows_when_the_answer_is_cut_off(fields: dict[str, object], max_tokens: int | None) -> None:
    grammar = Steps(((10,), (10,)))
    run(with_grammar(make_request("r", [1], **{"max_tokens": 5, **fields}), grammar), max_position=40)
    assert grammar.max_tokens == [max_tokens]


def test_a_grammar_that_nobody_compiled_is_refused() -> None:
    executor = ScriptedExecutor(vocab_size=VOCAB)
    request = make_request("r", [1], max_tokens=2, grammar=Grammar("regex", "a"))
    with pytest.raises(RequestError, match="not compiled"):
        scheduler_for(executor).add(request)


def test_a_result_from_before_a_preemption_does_not_reach_the_matcher() -> None:
    grammar = Steps(((10,), (11,), (12,)))
    executor = ScriptedExecutor(vocab_size=VOCAB, emit=AnswerAll((), then=50), plans_in_flight=2)
    scheduler = scheduler_for(executor)
    scheduler.add(with_grammar(make_request("r", [1], max_tokens=5), grammar))
    plan = scheduler.plan()
    assert plan is not None
    executor.launch(plan)
    ledger = scheduler._ledger
    ledger.evict(ledger.running[0])
    assert scheduler.commit(plan, executor.collect(plan.step_id)) == []
    assert grammar.matchers[0].accepted == []
    outcomes = drive(scheduler, executor)
    assert outcomes["r", 0].tokens == [10, 11, 12]
    assert array("i", grammar.matchers[0].accepted) == array("i", [10, 11, 12])


def test_a_token_that_does_not_fit_is_sampled_again_with_the_mask() -> None:
    """From the logits that are there; nobody sees the first token, and the sequence loses no step."""
    grammar = Steps(((10,), (11, 12), (13,), (14, 15)), waits=frozenset({1, 2, 3}))
    fake = ScriptedExecutor(vocab_size=VOCAB, emit=AnswerAll((10, 12, 40, 14), then=50))
    bound = with_grammar(make_request("bound", [1, 2], max_tokens=9, temperature=0.0), grammar)
    outcomes = drive(scheduler_for(fake), fake, [bound, make_request("free", [3], max_tokens=4, seed=1)])
    assert outcomes["bound", 0].tokens == [10, 12, 13, 14]
    assert outcomes["bound", 0].finish is FinishReason.STOP
    assert grammar.matchers[0].refused == [40]
    assert [plan.masks for plan in fake.plans] == [(mask_of(10),), (), (), ()]
    assert [list(plan.positions) for plan in fake.plans[1:]] == [[2, 1], [3, 2], [4, 3]]


def test_where_logits_are_not_kept_the_row_of_a_token_that_does_not_fit_is_computed_again() -> None:
    """In the next step; nobody sees the first token, and nothing else waits."""
    grammar = Steps(((10,), (11, 12), (13,), (14, 15)), waits=frozenset({1, 2, 3}))
    fake = ScriptedExecutor(vocab_size=VOCAB, emit=AnswerAll((10, 12, 40, 14), then=50), keeps_logits=False)
    bound = with_grammar(make_request("bound", [1, 2], max_tokens=9, temperature=0.0), grammar)
    free = make_request("free", [3], max_tokens=6, seed=1)
    outcomes = drive(scheduler_for(fake), fake, [bound, free])
    assert outcomes["bound", 0].tokens == [10, 12, 13, 14]
    assert outcomes["bound", 0].finish is FinishReason.STOP
    assert grammar.matchers[0].refused == [40]
    assert len(outcomes["free", 0].tokens) == 6
    assert [plan.masks for plan in fake.plans] == [(mask_of(10),), (), (), (mask_of(13),), (), ()]
    assert [list(plan.positions) for plan in fake.plans[2:4]] == [[3, 2], [3, 3]]


@pytest.mark.parametrize("keeps_logits", [False, True])
@pytest.mark.parametrize(("answer", "then"), [((10, END), FinishReason.STOP), ((10, 50), FinishReason.LENGTH)])
def test_an_end_token_that_does_not_fit_is_no_end(
    answer: tuple[int, ...], then: FinishReason, keeps_logits: bool
) -> None:
    """Also where max_tokens would end the answer with the token."""
    grammar = Steps(((10,), (11,), (12,)), waits=frozenset({1}))
    request = make_request("r", [1], max_tokens=9 if END in answer else 2, temperature=0.0, ends={END})
    outcomes, _ = run(with_grammar(request, grammar), answer, keeps_logits=keeps_logits)
    assert outcomes["r", 0].tokens == [10, 11, 12][: 3 if END in answer else 2]
    assert (outcomes["r", 0].finish, outcomes["r", 0].stop_token) == (then, None)


def test_where_the_mask_leaves_nothing_to_sample_again_the_error_says_so() -> None:
    grammar = Steps(((10,), (), (12,)), waits=frozenset({1}))
    outcomes, _ = run(with_grammar(make_request("r", [1], max_tokens=5, temperature=0.0), grammar), (10, 11))
    assert outcomes["r", 0].finish is FinishReason.ERROR
    assert "grammar allows none" in (outcomes["r", 0].error or "")


@pytest.mark.parametrize("ended", ["aborted", "preempted"])
def test_a_sequence_that_left_its_place_is_not_sampled_again(ended: str) -> None:
    grammar = Steps(((10,), (11,), (12,)), waits=frozenset({1}))
    executor = ScriptedExecutor(vocab_size=VOCAB, emit=AnswerAll((10, 40), then=50))
    scheduler = scheduler_for(executor)
    scheduler.add(with_grammar(make_request("r", [1], max_tokens=5, temperature=0.0), grammar))
    for event in (None, ended):
        plan = scheduler.plan()
        assert plan is not None
        executor.launch(plan)
        ledger = scheduler._ledger
        if event == "aborted":
            end_without_token(ledger, ledger.running[0], Event.ABORT)
        elif event == "preempted":
            ledger.evict(ledger.running[0])
        result = executor.collect(plan.step_id)
        assert scheduler.refused(plan, result) == {}
        scheduler.commit(plan, result)
    assert grammar.matchers[0].accepted == [10]
    assert grammar.matchers[0].refused == []


def test_a_grammar_that_breaks_at_a_token_that_does_not_fit_ends_its_sequence_only() -> None:
    fake = ScriptedExecutor(vocab_size=VOCAB, emit=AnswerAll((), then=50))
    grammar = Steps(((10,), (11,)), breaks_at=2, waits=frozenset({1}))
    broken = with_grammar(make_request("broken", [1], max_tokens=5, temperature=0.0), grammar)
    outcomes = drive(scheduler_for(fake), fake, [broken, make_request("other", [2], max_tokens=5, seed=9)])
    assert (outcomes["broken", 0].finish, outcomes["broken", 0].error) == (FinishReason.ERROR, "it broke")
    assert outcomes["broken", 0].error_param == "grammar"
    assert outcomes["other", 0].finish is FinishReason.LENGTH


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 0.7, "min_p": 0.1},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.1},
        {"bad_words": ("x",)},
    ],
)
def test_masks_do_not_wait_where_a_second_try_may_differ(fields: dict[str, object]) -> None:
    grammar = Steps(((10,), (11,)), waits=frozenset({1}))
    request = make_request("r", [1], **{"max_tokens": 5, "temperature": 0.0, **fields})
    _, fake = run(with_grammar(request, grammar))
    assert grammar.may_retry == [False]
    assert [plan.masks for plan in fake.plans] == [(mask_of(10),), (mask_of(11),)]


@pytest.mark.parametrize(
    "fields", [{"temperature": 0.7}, {"temperature": 0.7, "top_k": -1}, {"temperature": 0.0, "top_k": 5}]
)
def test_masks_wait_where_a_second_try_leaves_the_answer_as_likely(fields: dict[str, object]) -> None:
    grammar = Steps(((10,), (11,)), waits=frozenset({1}))
    _, fake = run(with_grammar(make_request("r", [1], **{"max_tokens": 5, **fields}), grammar), (10, 11))
    assert grammar.may_retry == [True]
    assert [plan.masks for plan in fake.plans] == [(mask_of(10),), ()]


def test_masks_do_not_wait_where_a_row_cannot_be_computed_again() -> None:
    grammar = Steps(((10,), (11,)), waits=frozenset({1}))
    state = CacheGroup("state", "state", None, num_layers=1, bytes_per_block=0)
    run(with_grammar(make_request("r", [1], max_tokens=5, temperature=0.0), grammar), groups=(state,))
    assert grammar.may_retry == [False]


def hashed(history: Sequence[int], params: SlotReset, seen: Sequence[int]) -> int:
    return (END, *range(10, 32))[(sum(history) * 7 + len(history) + params.seed) % 23]


ALLOWED = st.lists(st.sets(st.sampled_from((END, *range(10, 30))), min_size=1).map(tuple), min_size=1, max_size=12)
STEPS = st.lists(ALLOWED.map(tuple), min_size=1, max_size=4).map(lambda steps: dict(enumerate(steps)))
WAITS = st.frozensets(st.integers(1, 11))


def answers(
    steps: Mapping[int, tuple[tuple[int, ...], ...]], waits: frozenset[int], temperature: float, **executor: object
) -> dict[tuple[str, int], object]:
    """What a request for each of `steps` answers, all together; the keys are seeds, and more."""
    sizes = {"block_size": 4, "vocab_size": VOCAB, "max_position": 28}
    fake = ScriptedExecutor(emit=hashed, redraws=temperature > 0, **sizes, **executor)  # type: ignore[arg-type]
    requests = [
        with_grammar(
            make_request(f"r{i}", range(3 + i), max_tokens=10, temperature=temperature, seed=i, ends={END}),
            Steps(allowed, waits=waits),
        )
        for i, allowed in steps.items()
    ]
    outcomes = drive(scheduler_for(fake, max_num_batched_tokens=16), fake, requests)
    return {key: (each.tokens, each.finish, each.stop_token, each.error) for key, each in outcomes.items()}


@given(steps=STEPS, waits=WAITS, num_blocks=st.sampled_from((7, 9, 100)), keeps_logits=st.booleans())
def test_masks_that_wait_change_no_greedy_answer(
    steps: dict[int, tuple[tuple[int, ...], ...]], waits: frozenset[int], num_blocks: int, keeps_logits: bool
) -> None:
    """C03: with preemptions and prefix hits, too."""
    sizes = {"num_blocks": num_blocks, "keeps_logits": keeps_logits}
    assert answers(steps, waits, 0.0, **sizes) == answers(steps, frozenset(), 0.0, **sizes)


@given(steps=STEPS, waits=WAITS, num_blocks=st.sampled_from((7, 9)), keeps_logits=st.booleans())
def test_c03_where_masks_wait_a_sampled_answer_depends_on_its_request_alone(
    steps: dict[int, tuple[tuple[int, ...], ...]], waits: frozenset[int], num_blocks: int, keeps_logits: bool
) -> None:
    """C03, P1: with preemptions, and where the row of a refused token has to be computed again."""
    alone: dict[tuple[str, int], object] = {}
    for i, allowed in steps.items():
        alone |= answers({i: allowed}, waits, 1.0, num_blocks=100)
    assert answers(steps, waits, 1.0, num_blocks=num_blocks, keeps_logits=keeps_logits) == alone
