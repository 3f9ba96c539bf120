"""Recorded traffic as times and lengths: what production traces hold.

timed_trace  JSONL, one {"timestamp": ms, "input_length", "output_length", "hash_ids"} per line, as Mooncake publishes
burstgpt     CSV with the columns Timestamp (seconds), Request tokens, Response tokens
recorded     JSONL as `legato serve --record-traffic` writes, one {"at_s", "prompt_tokens", "output_tokens", ...} a line

A hash id stands for `hash_size` tokens and all that comes before them; equal ids are equal beginnings of prompts.
"""

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from legato.core.errors import ConfigError

__all__ = ["TRACES", "TraceRow", "field", "lines", "read_trace"]

MOONCAKE_BLOCK = 512  # tokens that one hash id of a Mooncake trace stands for


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace. `line`: where it is in the file. The last hash id may stand for fewer tokens."""

    line: int
    at_s: float  # from the first request of the trace
    tokens_in: int
    tokens_out: int
    hash_ids: tuple[int, ...] = ()
    hash_size: int = MOONCAKE_BLOCK
    priority: int = 0
    tenant: str = ""


def read_trace(kind: str, path: Path) -> list[TraceRow]:
    """The requests of a trace that got an answer, in order of time. ConfigError names the file and line at fault."""
    if kind not in TRACES:
        raise ConfigError(f"trace: {kind!r} is not one of {', '.join(TRACES)}")
    try:
        found = [row for row in TRACES[kind](path) if row.tokens_in and row.tokens_out]
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not found:
        raise ConfigError(f"{path}: holds no request with an answer")
    first_s = min(row.at_s for row in found)
    return sorted((replace(row, at_s=row.at_s - first_s) for row in found), key=lambda row: row.at_s)


def lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file with the numbers of their lines. ValueError names the line."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    value = json.loads(line)
                except ValueError as error:
                    raise ValueError(f"line {number}: {error}") from None
                if not isinstance(value, dict):
                    raise ValueError(f"line {number}: not a JSON object")
                yield number, value


def field(value: dict[str, Any], name: str, kind: type | tuple[type, ...], line: int) -> Any:
    """A value of this type. ValueError names line and field."""
    found = value.get(name)
    if not isinstance(found, kind) or isinstance(found, bool):
        raise ValueError(f"line {line}: {name} is missing or of a wrong type")
    return found


def _mooncake(path: Path) -> Iterator[TraceRow]:
    for line, value in lines(path):
        tokens_in, tokens_out = (_count(value, name, line) for name in ("input_length", "output_length"))
        at_s = field(value, "timestamp", (int, float), line) / 1000
        yield _row(line, at_s, tokens_in, tokens_out, _ids(value, line), MOONCAKE_BLOCK)


def _recorded(path: Path) -> Iterator[TraceRow]:
    for line, value in lines(path):
        tokens_in, tokens_out = (_count(value, name, line) for name in ("prompt_tokens", "output_tokens"))
        ids = _ids(value, line)
        size = _count(value, "hash_size", line) if ids else MOONCAKE_BLOCK
        row = _row(line, float(field(value, "at_s", (int, float), line)), tokens_in, tokens_out, ids, size)
        whose = {"priority": 0, "tenant": "", **value}
        yield replace(row, priority=field(whose, "priority", int, line), tenant=field(whose, "tenant", str, line))


def _burstgpt(path: Path) -> Iterator[TraceRow]:
    with path.open(encoding="utf-8", newline="") as file:
        for line, row in enumerate(csv.DictReader(file), 2):
            try:
                tokens_in, tokens_out = int(row["Request tokens"]), int(row["Response tokens"])
                at_s = float(row["Timestamp"])
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"line {line}: {type(error).__name__} {error}") from None
            yield TraceRow(line, at_s, tokens_in, tokens_out)


def _row(line: int, at_s: float, tokens_in: int, tokens_out: int, ids: tuple[int, ...], size: int) -> TraceRow:
    if ids and len(ids) * size < tokens_in:
        raise ValueError(f"line {line}: {len(ids)} hash_ids cannot hold {tokens_in} tokens")
    return TraceRow(line, at_s, tokens_in, tokens_out, ids, size)


def _count(value: dict[str, Any], name: str, line: int) -> int:
    count: int = field(value, name, int, line)
    if count < 0:
        raise ValueError(f"line {line}: {name} is below 0")
    return count


def _ids(value: dict[str, Any], line: int) -> tuple[int, ...]:
    ids = value.get("hash_ids") or []
    if not isinstance(ids, list) or not all(isinstance(id, int) and id >= 0 for id in ids):
        raise ValueError(f"line {line}: hash_ids is not a list of numbers from 0")
    return tuple(ids)


TRACES: dict[str, Callable[[Path], Iterator[TraceRow]]] = {
    "timed_trace": _mooncake,
    "burstgpt": _burstgpt,
    "recorded": _recorded,
}
