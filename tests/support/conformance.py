"""JSON schemas of many kinds (corpus/schemas.jsonl), and what an answer to one must be."""

import json
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

from legato.core.grammar import Grammar, Matcher, json_grammar

__all__ = ["Case", "cases", "fits", "walk"]

CORPUS = Path(__file__).parents[1] / "corpus" / "schemas.jsonl"


@dataclass(frozen=True)
class Case:
    """bounded: every answer is of a length that the schema bounds, so all of them end."""

    name: str
    bounded: bool
    schema: Any

    @property
    def grammar(self) -> Grammar:
        return json_grammar(self.schema, "schema")


@cache
def cases() -> tuple[Case, ...]:
    return tuple(Case(**json.loads(line)) for line in CORPUS.read_text().splitlines())


def fits(case: Case, text: str) -> str | None:
    """None where `text` is JSON that fits the schema, by another implementation; else why not."""
    try:
        jsonschema.Draft202012Validator(case.schema, format_checker=_formats()).validate(json.loads(text))
    except jsonschema.ValidationError as error:
        return error.message
    except ValueError as error:
        return str(error)
    return None


@cache
def _formats() -> jsonschema.FormatChecker:
    """The checker of `jsonschema`, with days in a leap year: a grammar knows months, but not which years have a 29th of
    February, and RFC 3339 has a year 0, which Python has not."""
    stock = jsonschema.Draft202012Validator.FORMAT_CHECKER
    checker = jsonschema.FormatChecker(())
    checker.checkers = dict(stock.checkers)
    for name in ("date", "date-time"):
        check, _ = stock.checkers[name]
        checker.checks(name, ValueError)(lambda value, check=check: check(f"2000{value[4:]}"))
    return checker


def walk(matcher: Matcher, end: int, seed: str, max_tokens: int) -> tuple[list[int], bool]:
    """Tokens that are chosen at random among those that the masks allow, and whether the answer has ended."""
    choice = random.Random(seed)
    tokens: list[int] = []
    while len(tokens) < max_tokens:
        mask = int.from_bytes(matcher.mask, "little")
        if mask >> end & 1 and choice.random() < 0.5:
            return tokens, True
        tokens.append(_random_bit(mask & ~(1 << end), choice))
        matcher.accept(tokens[-1])
        assert matcher.failure is None, matcher.failure
        if matcher.complete:
            return tokens, True
    return tokens, False


def _random_bit(mask: int, choice: random.Random) -> int:
    """One of the bits that are set, somewhat more often one behind a gap."""
    start = choice.randrange(mask.bit_length())
    above = mask >> start
    return start + (above & -above).bit_length() - 1
