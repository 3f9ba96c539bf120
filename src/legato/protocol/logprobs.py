"""Log probabilities on the wire, in the shape of chat and in that of completions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["ScoredToken", "TokenLogprob", "chat_logprobs", "completion_logprobs"]

FLOOR = -9999.0  # stands for minus infinity, which JSON does not have


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and its natural log probability. `data`: its bytes. `shown`: whether they are part of the text."""

    data: bytes
    shown: bool
    logprob: float


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token of an answer, and the most probable ones in its place, best first.

    `offset`: characters of text that were complete before it.
    """

    chosen: TokenLogprob
    offset: int
    top: tuple[TokenLogprob, ...] = ()


def chat_logprobs(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    """`choices[].logprobs` of chat: the `bytes` of all tokens, joined, are the UTF-8 of the text."""
    content = [{**_entry(t.chosen), "top_logprobs": [_entry(other) for other in t.top]} for t in tokens]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    """`choices[].logprobs` of completions: four lists of one length. The chosen token is among its top ones."""
    return {
        "text_offset": [t.offset for t in tokens],
        "token_logprobs": [_finite(t.chosen.logprob) for t in tokens],
        "tokens": [_exact_text(t.chosen.data) for t in tokens],
        "top_logprobs": [_by_text((*t.top, t.chosen)) for t in tokens],
    }


def _entry(token: TokenLogprob) -> dict[str, Any]:
    return {
        "token": token.data.decode(errors="replace"),
        "logprob": _finite(token.logprob),
        "bytes": list(token.data) if token.shown else [],
    }


def _by_text(tokens: Sequence[TokenLogprob]) -> dict[str, float]:
    """The first one wins where two tokens have one text."""
    found: dict[str, float] = {}
    for token in tokens:
        found.setdefault(_exact_text(token.data), _finite(token.logprob))
    return found


def _exact_text(data: bytes) -> str:
    r"""The text, or `bytes:\xe2\x80` for a part of a character: completions have no other place for bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _finite(logprob: float) -> float:
    return max(logprob, FLOOR)
