"""Log probabilities on the wire, in the shape of chat and in that of completions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["ScoredToken", "TokenLogprob", "chat_logprobs", "completion_logprobs", "prompt_logprobs"]

FLOOR = -9999.0  # stands for minus infinity, which JSON does not have


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and its natural log probability. `data`: its bytes. `shown`: whether they are part of the text.

    logprob: None for the first token of a prompt, which follows nothing.
    """

    id: int
    data: bytes
    shown: bool
    logprob: float | None


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token of an answer or a prompt, and the most probable ones in its place, best first.

    `offset`: characters of text that were complete before it.
    """

    chosen: TokenLogprob
    offset: int
    top: tuple[TokenLogprob, ...] = ()


def chat_logprobs(tokens: Sequence[ScoredToken], as_ids: bool) -> dict[str, Any]:
    """`choices[].logprobs` of chat: the `bytes` of all tokens, joined, are the UTF-8 of the text.

    as_ids: tokens are written as `token_id:7`, here and below.
    """
    content = [{**_entry(t.chosen, as_ids), "top_logprobs": [_entry(other, as_ids) for other in t.top]} for t in tokens]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[ScoredToken], as_ids: bool) -> dict[str, Any]:
    """`choices[].logprobs` of completions: four lists of one length. The chosen token is among its top ones."""
    return {
        "text_offset": [t.offset for t in tokens],
        "token_logprobs": [_finite(t.chosen.logprob) for t in tokens],
        "tokens": [_exact_text(t.chosen, as_ids) for t in tokens],
        "top_logprobs": [None if t.chosen.logprob is None else _by_text((*t.top, t.chosen), as_ids) for t in tokens],
    }


def prompt_logprobs(tokens: Sequence[ScoredToken], count: int) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: for each token a map from id, of itself and the `count` best; null for the first.

    `rank` counts from 1, and is null for a token beyond the best.
    """
    found: list[dict[str, Any] | None] = []
    for token in tokens:
        if token.chosen.logprob is None:
            found.append(None)
            continue
        ranked = {str(other.id): _ranked(other, rank) for rank, other in enumerate(token.top[:count], 1)}
        found.append({str(token.chosen.id): _ranked(token.chosen, None), **ranked})
    return found


def _ranked(token: TokenLogprob, rank: int | None) -> dict[str, Any]:
    return {
        "logprob": _finite(token.logprob),
        "rank": rank,
        "decoded_token": token.data.decode(errors="replace"),
    }


def _entry(token: TokenLogprob, as_ids: bool) -> dict[str, Any]:
    return {
        "token": _id_text(token) if as_ids else token.data.decode(errors="replace"),
        "logprob": _finite(token.logprob),
        "bytes": list(token.data) if token.shown else [],
    }


def _by_text(tokens: Sequence[TokenLogprob], as_ids: bool) -> dict[str, float | None]:
    """The first one wins where two tokens have one text."""
    found: dict[str, float | None] = {}
    for token in tokens:
        found.setdefault(_exact_text(token, as_ids), _finite(token.logprob))
    return found


def _exact_text(token: TokenLogprob, as_ids: bool) -> str:
    r"""The text, or `bytes:\xe2\x80` for a part of a character: completions have no other place for bytes."""
    if as_ids:
        return _id_text(token)
    try:
        return token.data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.data)


def _id_text(token: TokenLogprob) -> str:
    return f"token_id:{token.id}"


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, FLOOR)
