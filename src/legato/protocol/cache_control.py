"""Cache hints: `cache_control`, as Anthropic's API has it, where a prefix ends that is worth keeping."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from legato.core.errors import RequestError
from legato.protocol.parse import Body

__all__ = ["CacheControl", "Hint", "check_hint", "hints_of"]

MAX_HINTS = 4
_TTL_S = {"5m": 300.0, "1h": 3600.0}


class CacheControl(Body):
    """{"type": "ephemeral", "ttl": "5m" or "1h"}."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None  # 5m

    @property
    def ttl_s(self) -> float:
        return _TTL_S[self.ttl or "5m"]


@dataclass(frozen=True, slots=True)
class Hint:
    """A prefix to pin ends with this tool, or this message, or this part of its content."""

    ttl_s: float
    message: int = -1
    part: int | None = None
    tool: int | None = None


def check_hint(holder: dict[str, Any], where: str) -> None:
    """RequestError where the `cache_control` of a message, part or tool has not the right shape. null: left out."""
    hint = holder.get("cache_control")
    known = isinstance(hint, dict) and hint.get("type") == "ephemeral" and hint.keys() <= {"type", "ttl"}
    if hint is not None and not (known and hint.get("ttl") in (None, "5m", "1h")):
        raise RequestError(
            f'{where}.cache_control must be {{"type": "ephemeral"}}, with "ttl": "5m" or "1h" if any',
            param=f"{where}.cache_control",
        )


def hints_of(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], whole: CacheControl | None
) -> list[Hint]:
    """The hints in checked tools and messages. whole: the body's own, which stands for the end of the last message.

    RequestError where there are more than MAX_HINTS: each costs work.
    """
    hints = [Hint(_ttl_s(hint), tool=i) for i, tool in enumerate(tools) if (hint := tool.get("cache_control"))]
    for index, message in enumerate(messages):
        content = message.get("content")
        for part, each in enumerate(content if isinstance(content, list) else ()):
            if hint := each.get("cache_control"):
                hints.append(Hint(_ttl_s(hint), index, part))
        if hint := message.get("cache_control"):
            hints.append(Hint(_ttl_s(hint), index))
    if whole is not None:
        hints.append(Hint(whole.ttl_s, len(messages) - 1))
    if len(hints) > MAX_HINTS:
        raise RequestError(f"{len(hints)} cache_control hints, at most {MAX_HINTS}", param="cache_control")
    return hints


def _ttl_s(hint: dict[str, Any]) -> float:
    return _TTL_S[hint.get("ttl") or "5m"]
