"""When what happened to one request."""

from dataclasses import dataclass

from legato.core.types import FinishReason, Request

__all__ = ["Timeline"]


@dataclass(frozen=True, slots=True)
class Timeline:
    """A request that has ended as a whole. Times are seconds of time.monotonic(); None: it never came to that.

    Of the choices, the earliest counts for `scheduled_s` and `first_token_s`. `num_tokens` and `finishes` have one
    entry per choice.
    """

    request: Request
    scheduled_s: float | None  # entered the batch for the first time
    first_token_s: float | None
    end_s: float
    num_tokens: tuple[int, ...]  # as billed
    finishes: tuple[FinishReason, ...]
    num_cached: int  # prompt tokens of the first choice from the prefix cache
    num_preemptions: int
    error: str | None

    @property
    def arrival_s(self) -> float:
        return self.request.arrival_s
