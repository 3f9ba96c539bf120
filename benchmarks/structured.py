"""What structured output costs: tokens per second of 32 sequences with a JSON schema and without, in turn. int8.

python benchmarks/structured.py [--rounds 3] [--sequences 32] [--tokens 128]

Both decode the same number of tokens from the same prompts: with the grammar, a list of records that is longer than
`--tokens`; without, whatever the model says, the end token ignored. A round is one batch of each, in alternating order;
the figure is the median of the rounds' ratios. All that greedily and sampled at temperature 0.7, with strings of any
length and with strings of few characters: near the end of such a one llguidance has to look at each token to find a
mask, which a row needs only when its token is refused. Then CPU time per row, for the tokens of a greedy answer, all of
which fit: as it is, and with all masks, as rows with `top_p` or penalties have them.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from common import Result, arguments, say

from legato import LLM, SamplingParams, StructuredOutputsParams
from legato.core.config import GrammarConfig
from legato.core.grammar import Grammar
from legato.sampling.compiler import GrammarCompiler, Vocabulary
from legato.sampling.matcher import TokenMatcher

BOUNDS = {"structured": (None, None), "structured-short": (24, 12)}  # characters of a name and of a tag
TEMPERATURES = {"": 0.0, "-sampled": 0.7}
TALK = "Make up some people: list their names, ages, roles and tags as JSON."


def schema(name: int | None, tag: int | None) -> dict[str, Any]:
    def text(most: int | None) -> dict[str, Any]:
        return {"type": "string"} if most is None else {"type": "string", "maxLength": most}

    record = {
        "type": "object",
        "properties": {
            "name": text(name),
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "role": {"enum": ["reader", "writer", "editor"]},
            "tags": {"type": "array", "items": text(tag), "maxItems": 4},
        },
        "required": ["name", "age", "role", "tags"],
        "additionalProperties": False,
    }
    return {"type": "array", "items": record, "minItems": 1000}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args()
    result = Result("structured", args)
    with LLM(format="int8", max_num_seqs=args.sequences) as llm:
        for key, bounds in BOUNDS.items():
            grammar = StructuredOutputsParams(json=schema(*bounds)).to_grammar()
            for suffix, temperature in TEMPERATURES.items():
                add(result, key + suffix, llm, grammar, temperature, args)
    result.save()


def add(result: Result, key: str, llm: LLM, grammar: Grammar, temperature: float, args: argparse.Namespace) -> None:
    rates: dict[str, list[float]] = {"with a schema": [], "without": []}
    with refusals() as refused:  # this batch compiles the grammar, too
        tokens_per_s(llm, grammar, temperature, args)
    for number in range(args.rounds):
        order = list(rates) if number % 2 else list(reversed(rates))
        for name in order:
            rate = tokens_per_s(llm, grammar if name == "with a schema" else None, temperature, args)
            rates[name].append(rate)
            say(f"{key}, round {number}, {name}: {rate:,.0f} tokens/s")
    share = statistics.median(a / b for a, b in zip(rates["with a schema"], rates["without"], strict=True))
    refusals_share = len(refused) / (args.sequences * args.tokens)
    notes = [f"{refusals_share:.1%} of the tokens refused, and sampled again with a mask"]
    if temperature == 0.0:
        few, all_masks = mask_us(llm, grammar, args.tokens)
        notes.append(
            f"{few:.1f} us of CPU time per row to check a token and to take it in, {all_masks:.1f} with all masks"
        )
    result.add(key, share, rates, "tokens/s", notes)


@contextmanager
def refusals() -> Iterator[list[int]]:
    """Tokens that were sampled without a mask and refused meanwhile."""
    refused: list[int] = []
    fits = TokenMatcher.fits

    def noted(matcher: TokenMatcher, token: int) -> bool:
        waits = matcher.mask is None
        fit = fits(matcher, token)
        if waits and not fit:
            refused.append(token)
        return fit

    TokenMatcher.fits = noted  # type: ignore[method-assign]
    try:
        yield refused
    finally:
        TokenMatcher.fits = fits  # type: ignore[method-assign]


def tokens_per_s(llm: LLM, grammar: Grammar | None, temperature: float, args: argparse.Namespace) -> float:
    """One batch. Prompts differ in their first token, so that none is found in the prefix cache of another."""
    sequences, tokens = args.sequences, args.tokens
    talks = [[{"role": "user", "content": f"{number}. {TALK}"}] for number in range(sequences)]
    params = [
        SamplingParams(
            max_tokens=tokens,
            temperature=temperature,
            seed=seed,
            ignore_eos=True,
            grammar=grammar,
            skip_reading_prefix_cache=True,
        )
        for seed in range(sequences)
    ]
    began = time.perf_counter()
    outputs = llm.chat(talks, params, use_tqdm=False)
    seconds = time.perf_counter() - began
    made = sum(len(output.outputs[0].token_ids) for output in outputs)
    if made != sequences * tokens:
        raise SystemExit(f"{made} tokens instead of {sequences * tokens}")
    return made / seconds


def mask_us(llm: LLM, grammar: Grammar, tokens: int) -> list[float]:
    """CPU time per token of the answer of the model to a talk, without the model: masks where they must be, and all."""
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, grammar=grammar)
    [output] = llm.chat([{"role": "user", "content": TALK}], params, use_tqdm=False)
    tokenizer = llm.get_tokenizer()
    special = tokenizer.special_tokens.values()
    vocabulary = Vocabulary(llm.info.vocab_size, tokenizer.token_bytes, special, tokenizer.encode_further)
    compiler = GrammarCompiler(vocabulary, GrammarConfig())
    compiled = compiler.compile(grammar)
    compiler.close()
    times = []
    for may_retry in (True, False):
        matchers = [compiled.matcher(frozenset(), may_retry=may_retry) for _ in range(8)]
        began = time.process_time()
        for matcher in matchers:
            for token in output.outputs[0].token_ids:
                matcher.fits(token)
                matcher.accept(token)
        times.append((time.process_time() - began) / len(matchers) / tokens * 1e6)
    return times


if __name__ == "__main__":
    main()
