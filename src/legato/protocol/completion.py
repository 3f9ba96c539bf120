"""The body of /v1/completions."""

from types import MappingProxyType
from typing import Any

from legato.core.errors import RequestError
from legato.core.types import Breakpoint
from legato.protocol.parse import parse_body
from legato.protocol.requests import NOTHING, REFUSED, GenerateBody, checked

__all__ = ["CompletionBody", "Prompt", "parse_completion"]

Prompt = str | list[int]

MAX_PROMPTS = 1024


class CompletionBody(GenerateBody):
    """POST /v1/completions."""

    prompt: Any
    add_special_tokens: bool = True
    logprobs: int | None = None
    echo: bool = False

    def prompts(self) -> list[Prompt]:
        """The prompts, one or many, each a text or token ids. Empty ones are left to the tokenizer to judge."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if isinstance(prompt, list) and prompt:
            if _is_ids(prompt):
                return [prompt]
            if len(prompt) > MAX_PROMPTS:
                raise RequestError(f"prompt holds {len(prompt)} prompts, at most {MAX_PROMPTS}", param="prompt")
            if all(isinstance(p, str) for p in prompt) or all(isinstance(p, list) and _is_ids(p) for p in prompt):
                return prompt
        if prompt == []:
            raise RequestError("prompt is empty", param="prompt", code="empty_prompt")
        raise RequestError(
            "prompt must be a string, a list of strings, a list of token ids, or a list of lists of token ids",
            param="prompt",
            code="invalid_type",
        )

    def breakpoints(self, length: int) -> tuple[Breakpoint, ...]:
        """The hint of a prompt of this many tokens: to pin all of it."""
        return () if self.cache_control is None else (Breakpoint(length, self.cache_control.ttl_s),)

    def _logprobs(self) -> int | None:
        return self.logprobs

    def _prompt_logprobs(self) -> int | None:
        """An echo repeats the prompt with log probabilities if there are any; without an answer it needs a score."""
        if not self.echo or (self.logprobs is None and self.max_tokens != 0):
            return self.prompt_logprobs
        return max(self.logprobs or 0, self.prompt_logprobs or 0)


def _is_ids(value: list[Any]) -> bool:
    return all(type(token) is int for token in value)


def parse_completion(data: bytes, ignored: list[str] | None = None) -> CompletionBody:
    """A checked body of /v1/completions. RequestError names the field. ignored: see parse_body."""
    return checked(parse_body(CompletionBody, data, _REFUSED, ignored))


_REFUSED = MappingProxyType(
    {
        **REFUSED,
        "documents": NOTHING,
        "best_of": (1,),
        "suffix": ("",),
        "prompt_embeds": NOTHING,
    }
)
