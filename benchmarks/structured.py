"""What structured output costs: tokens per second of 32 sequences with a JSON schema and without, in turn. int8.

python benchmarks/structured.py [--rounds 3] [--sequences 32] [--tokens 128]

Both decode the same number of tokens from the same prompts, greedily: with the grammar, a list of records that is
longer than `--tokens`; without, whatever the model says, the end token ignored. A round is one batch of each, in
alternating order; the figure is the median of the rounds' ratios. Then the masks alone: CPU time per row, for the
tokens of such an answer, greedy and sampled. All that with strings of any length, and with strings of few characters:
near the end of such a one llguidance has to look at each token to find a mask, which a greedy row seldom needs. (The
CPU time of a greedy row leaves out the masks of tokens that are refused: all of an answer fit.)
"""

import argparse
import statistics
import time
from typing import Any

from common import Result, arguments, say

from legato import LLM, SamplingParams, StructuredOutputsParams
from legato.core.config import GrammarConfig
from legato.core.grammar import Grammar
from legato.sampling.compiler import GrammarCompiler, Vocabulary

BOUNDS = {"structured": (None, None), "structured-short": (24, 12)}  # characters of a name and of a tag
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
            add(result, key, llm, StructuredOutputsParams(json=schema(*bounds)).to_grammar(), args)
    result.save()


def add(result: Result, key: str, llm: LLM, grammar: Grammar, args: argparse.Namespace) -> None:
    rates: dict[str, list[float]] = {"with a schema": [], "without": []}
    for number in range(-1, args.rounds):  # the first compiles the grammar, and does not count
        order = list(rates) if number % 2 else list(reversed(rates))
        for name in order:
            rate = tokens_per_s(llm, grammar if name == "with a schema" else None, args.sequences, args.tokens)
            if number >= 0:
                rates[name].append(rate)
                say(f"{key}, round {number}, {name}: {rate:,.0f} tokens/s")
    share = statistics.median(a / b for a, b in zip(rates["with a schema"], rates["without"], strict=True))
    greedy, sampled = mask_us(llm, grammar, args.tokens)
    notes = [
        f"{greedy:.1f} us of CPU time per row to take in a token and to find the next mask, {sampled:.1f} if sampled"
    ]
    result.add(key, share, rates, "tokens/s", notes)


def tokens_per_s(llm: LLM, grammar: Grammar | None, sequences: int, tokens: int) -> float:
    """One batch. Prompts differ in their first token, so that none is found in the prefix cache of another."""
    talks = [[{"role": "user", "content": f"{number}. {TALK}"}] for number in range(sequences)]
    params = SamplingParams(
        max_tokens=tokens, temperature=0.0, ignore_eos=True, grammar=grammar, skip_reading_prefix_cache=True
    )
    began = time.perf_counter()
    outputs = llm.chat(talks, params, use_tqdm=False)
    seconds = time.perf_counter() - began
    made = sum(len(output.outputs[0].token_ids) for output in outputs)
    if made != sequences * tokens:
        raise SystemExit(f"{made} tokens instead of {sequences * tokens}")
    return made / seconds


def mask_us(llm: LLM, grammar: Grammar, tokens: int) -> list[float]:
    """CPU time per token of the answer of the model to a talk, without the model: for a greedy and a sampled row."""
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, grammar=grammar)
    [output] = llm.chat([{"role": "user", "content": TALK}], params, use_tqdm=False)
    tokenizer = llm.get_tokenizer()
    special = tokenizer.special_tokens.values()
    vocabulary = Vocabulary(llm.info.vocab_size, tokenizer.token_bytes, special, tokenizer.encode_further)
    compiler = GrammarCompiler(vocabulary, GrammarConfig())
    compiled = compiler.compile(grammar)
    compiler.close()
    times = []
    for greedy in (True, False):
        matchers = [compiled.matcher(frozenset(), may_retry=greedy) for _ in range(8)]
        began = time.process_time()
        for matcher in matchers:
            for token in output.outputs[0].token_ids:
                matcher.fits(token)
                matcher.accept(token)
        times.append((time.process_time() - began) / len(matchers) / tokens * 1e6)
    return times


if __name__ == "__main__":
    main()
