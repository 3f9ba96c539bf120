"""Answers of a model to the whole corpus of JSON schemas: they end, and they fit.

usage: check_structured.py [MODEL] [--format NAME] [--max-tokens N] [--temperature T] [--rounds N] [--show]
(with `tests` in PYTHONPATH).
Every answer of a bounded schema ends with "stop" and fits; at most 5 % of the others end by length, and the grammar
accepted all of their tokens (one that it does not accept ends an answer with an error). Exits with status 1 where that
does not hold. Takes a minute.
"""

import argparse
import sys

from legato import LLM, SamplingParams
from legato.engine.llm import CompletionOutput
from support.conformance import Case, cases, fits

LENGTHS = 0.05  # of the answers to unbounded schemas may end by length


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--format", default="auto")
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--rounds", type=int, default=1, help="answers to each schema, with seeds from 0 on")
    parser.add_argument("--show", action="store_true", help="print all answers")
    args = parser.parse_args()
    asked = [(case, seed) for case in cases() for seed in range(args.rounds)]
    params = [
        SamplingParams(max_tokens=args.max_tokens, temperature=args.temperature, seed=seed, grammar=case.grammar)
        for case, seed in asked
    ]
    talks = [[{"role": "user", "content": f"Give me an example in JSON: {case.name}."}] for case, _ in asked]
    wrong, long = [], []
    with LLM(args.model, format=args.format) as llm:
        for (case, _), output in zip(asked, llm.chat(talks, params), strict=True):
            [answer] = output.outputs
            if args.show:
                print(f"{case.name}: {answer.finish_reason}: {answer.text}")
            if answer.finish_reason == "length":
                long.append(f"{case.name}: {answer.text}")
            if (reason := _wrong(case, answer)) is not None:
                wrong.append(f"{case.name}: {reason}: {answer.text}")
    unbounded = sum(not case.bounded for case, _ in asked)
    print(f"{len(asked)} answers, {len(asked) - unbounded} to bounded schemas; {len(wrong)} wrong")
    print(f"by length: {len(long)} of {unbounded} to unbounded schemas, {len(long) / unbounded:.1%}")
    print(*wrong, *long, sep="\n")
    return 1 if wrong or len(long) > LENGTHS * unbounded else 0


def _wrong(case: Case, answer: CompletionOutput) -> str | None:
    """What is wrong with an answer; None: nothing."""
    if answer.finish_reason == "stop":
        return fits(case, answer.text)
    if case.bounded or answer.finish_reason != "length":
        return f"it ended with {answer.finish_reason} {answer.error or ''}"
    return None


if __name__ == "__main__":
    sys.exit(main())
