"""What the engine tells a client."""

from dataclasses import dataclass, replace

from legato.core.types import FinishReason, PromptLogprobs

__all__ = ["Output"]


@dataclass(frozen=True, slots=True)
class Output:
    """What one step added to one choice of a request. The texts of a choice joined are its whole text.

    Exactly one output per choice has `finish` set, and it is the last. `num_tokens` counts the tokens of the choice
    so far, as billed: with the end token, without what came after a stop string. `stop` is the stop string, or the
    stop token id other than the model's own end tokens, that ended it.
    """

    request_id: str
    choice: int
    text: str
    tokens: tuple[int, ...]
    num_tokens: int
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    finish: FinishReason | None = None
    stop: str | int | None = None
    error: str | None = None
    error_param: str | None = None
    num_cached: int = 0
    num_restored: int = 0
    num_pinned: int = 0
    prompt_logprobs: PromptLogprobs | None = None  # on the first output of a choice, where asked for

    def then(self, later: "Output") -> "Output":
        """This output and the next one of the same choice as one."""
        return replace(
            later,
            text=self.text + later.text,
            tokens=self.tokens + later.tokens,
            logprobs=self.logprobs + later.logprobs,
            top_logprobs=self.top_logprobs + later.top_logprobs,
            prompt_logprobs=self.prompt_logprobs,
        )
