"""Structured output with the tokenizer of the default model, and with the model itself."""

from collections.abc import Iterator, Mapping

import pytest

from legato import LLM, SamplingParams, StructuredOutputsParams
from legato.core.config import GrammarConfig, ModelConfig
from legato.core.types import StepPlan, StepResult
from legato.engine.start import engine_file
from legato.executor.native import NativeExecutor
from legato.sampling.compiler import GrammarCompiler, Vocabulary
from legato.sampling.matcher import TokenMatcher
from legato.tokenizer.tokenizer import Tokenizer
from support.conformance import Case, cases, fits, walk

END = 2
TOKENS = 300  # more than any answer of a bounded schema takes here
SELDOM = ("format email", "format uri", "expression")  # lack an @ or a colon; are nested too deep by then


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(engine_file(ModelConfig()).text_assets)


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> Iterator[GrammarCompiler]:
    special = tokenizer.special_tokens.values()
    vocabulary = Vocabulary(tokenizer.vocab_size, tokenizer.token_bytes, special, tokenizer.encode_further)
    made = GrammarCompiler(vocabulary, GrammarConfig())
    yield made
    made.close()


def test_the_corpus_is_of_many_schemas() -> None:
    assert len(cases()) >= 200
    assert sum(not case.bounded for case in cases()) >= 30


@pytest.mark.parametrize("part", range(8))
def test_random_tokens_that_the_masks_allow_give_answers_that_fit(
    compiler: GrammarCompiler, tokenizer: Tokenizer, part: int
) -> None:
    """Any choice within the masks: bounded schemas end, and what has ended fits; most of the others are brought to an
    end before max_tokens."""
    for case in cases()[part::8]:
        grammar = compiler.compile(case.grammar)
        for max_tokens in (None, TOKENS):
            matcher = grammar.matcher(frozenset({END}), max_tokens)
            tokens, ended = walk(matcher, END, f"{case.name} {max_tokens}", TOKENS)
            text = tokenizer.decode(tokens)
            needs_end = case.bounded or (max_tokens is not None and case.name not in SELDOM)
            assert ended or not needs_end, f"{case.name}: no end in {TOKENS} tokens: {text}"
            if ended:
                assert fits(case, text) is None, f"{case.name}: {text}: {fits(case, text)}"


def ask(case: Case) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Give me an example in JSON: {case.name}."}]


def test_answers_of_the_default_model_end_and_fit() -> None:
    """A sample of the corpus; tests/parity/check_structured.py takes all of it."""
    some = [case for case in cases() if case.bounded][::12]
    params = [SamplingParams(max_tokens=TOKENS, seed=1, temperature=0.7, grammar=case.grammar) for case in some]
    with LLM(max_num_seqs=16) as llm:
        for case, output in zip(some, llm.chat([ask(case) for case in some], params, use_tqdm=False), strict=True):
            [answer] = output.outputs
            assert answer.finish_reason == "stop", f"{case.name}: {answer.text}"
            assert fits(case, answer.text) is None, f"{case.name}: {answer.text}"


PEOPLE = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 16}, "age": {"type": "integer", "maximum": 120}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "minItems": 2,
    "maxItems": 3,
}


def test_c03_guided_answers_are_the_same_alone_in_a_crowd_and_preempted(monkeypatch: pytest.MonkeyPatch) -> None:
    """C03, P1: tokens and log probabilities of guided answers, beside free ones, bit for bit. Also where the logits of
    refused tokens are not kept.
    """
    talks = [[{"role": "user", "content": f"{number}. List some people as JSON."}] for number in range(4)]
    guided = StructuredOutputsParams(json=PEOPLE)
    params = [
        SamplingParams(
            max_tokens=70,
            seed=number,
            temperature=0.9,
            repetition_penalty=1.1 if number % 2 else 1.0,
            logprobs=2,
            structured_outputs=None if number == 3 else guided,
        )
        for number in range(4)
    ]

    def answers(llm: LLM, together: bool) -> list[tuple[list[int], object, str | None]]:
        if together:
            outputs = llm.chat(talks, params, use_tqdm=False)
        else:
            outputs = [llm.chat(talk, one, use_tqdm=False)[0] for talk, one in zip(talks, params, strict=True)]
        return [(one.token_ids, one.logprobs, one.finish_reason) for output in outputs for one in output.outputs]

    again: list[int] = []

    def forgets(executor: NativeExecutor, plan: StepPlan, result: StepResult, masks: Mapping[int, bytes]) -> StepResult:
        again.extend(masks)
        return result

    with LLM(max_num_seqs=8) as roomy:
        alone, crowd = answers(roomy, together=False), answers(roomy, together=True)
        with monkeypatch.context() as patch:
            patch.setattr(NativeExecutor, "sample_again", forgets)
            computed_again = answers(roomy, together=True)
    assert again
    with LLM(max_num_seqs=8, num_blocks=13, enable_prefix_caching=False) as starved:
        preempted = answers(starved, together=True)
        assert starved._engine.loop.stats.preemptions > 0
    assert alone == crowd == computed_again == preempted
    assert all(finish == "stop" for _, _, finish in alone[:3])


def test_c03_masks_that_wait_change_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """C03: a token that fits without a mask is the one with it, and one that does not is sampled again at once."""
    text = {"type": "string", "minLength": 3, "maxLength": 12}
    record = {"type": "object", "properties": {"name": text, "role": text, "town": text}, "additionalProperties": False}
    grammar = StructuredOutputsParams(json={"type": "array", "items": record, "minItems": 9}).to_grammar()
    params = SamplingParams(max_tokens=60, seed=1, temperature=0.0, logprobs=1, ignore_eos=True, grammar=grammar)
    things = ("people", "dogs", "kings", "cities", "songs", "ships", "plays", "trees")
    talks = [[{"role": "user", "content": f"Tell me of {thing} with long names, in JSON."}] for thing in things]
    waited: list[bool] = []
    outputs: list[int] = []
    launch = NativeExecutor.launch
    judge = TokenMatcher.fits

    def counted(matcher: TokenMatcher, token: int) -> bool:
        if matcher.mask is not None:
            return judge(matcher, token)
        waited.append(judge(matcher, token))
        return waited[-1]

    def launched(executor: NativeExecutor, plan: StepPlan) -> None:
        outputs.append(len(plan.out_rows))
        launch(executor, plan)

    monkeypatch.setattr(TokenMatcher, "fits", counted)
    monkeypatch.setattr(NativeExecutor, "launch", launched)
    with LLM(max_num_seqs=16) as llm:
        outputs.clear()
        waiting = [output.outputs[0] for output in llm.chat(talks, params, use_tqdm=False)]
        assert waited.count(True) > 20
        assert waited.count(False) > 2
        assert sum(outputs) == len(talks) * 60, "no row is computed for a token that nobody sees"
        monkeypatch.setattr("legato.scheduler.ledger.may_retry", lambda params: False)
        waited.clear()
        with_masks = [output.outputs[0] for output in llm.chat(talks, params, use_tqdm=False)]
        assert waited == []
    for one, other in zip(waiting, with_masks, strict=True):
        assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason)
        assert one.logprobs == other.logprobs
