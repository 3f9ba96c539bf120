"""Log probabilities of an HTTP request's choices and of its prompts, and the prompts where they are echoed."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from legato.core.types import PromptLogprobs, Request
from legato.engine.inputs import Echo
from legato.engine.outputs import Output
from legato.engine.scorer import Scorer, score_prompt
from legato.protocol.logprobs import ScoredToken, chat_logprobs, completion_logprobs, prompt_logprobs
from legato.protocol.responses import Style
from legato.tokenizer.tokenizer import Tokenizer

__all__ = ["Scores", "aside"]

_T = TypeVar("_T")


async def aside(heavy: bool, call: Callable[..., _T], *arguments: Any) -> _T:
    """The result of a call. A heavy one is made in a thread, so that other streams go on meanwhile."""
    return await asyncio.to_thread(call, *arguments) if heavy else call(*arguments)


class Scores:
    """Of all choices, prompt by prompt. echoes: what the answers to each prompt begin with; None: with nothing."""

    def __init__(
        self,
        requests: Sequence[Request],
        tokenizer: Tokenizer,
        chat: bool,
        style: Style,
        echoes: Sequence[Echo] | None,
    ) -> None:
        self._requests = requests
        self._tokenizer = tokenizer
        self._shape = chat_logprobs if chat else completion_logprobs
        self._style = style
        self._echoes = [Echo("", 0)] * len(requests) if echoes is None else echoes
        self._echoes_tokens = echoes is not None and not chat
        self._n = requests[0].params.n
        self._count = requests[0].params.logprobs
        self.of_prompts = requests[0].params.prompt_logprobs is not None  # their answers are as long as the prompts
        self._scorers = [] if self._count is None else list(map(self._scorer, range(len(requests) * self._n)))

    def _scorer(self, index: int) -> Scorer:
        return Scorer(self._requests[index // self._n], self._tokenizer, len(self.echo(index)))

    def echo(self, index: int) -> str:
        """The text that a choice begins with."""
        return self._echoes[index // self._n].text

    def push(self, index: int, output: Output) -> list[ScoredToken]:
        """The tokens of the next output of a choice, before the first of them those of an echo; none if not asked."""
        if not self._scorers:
            return []
        tokens = self._scorers[index].push(output)
        if self._echoes_tokens and output.prompt_logprobs is not None:
            echoed = self._of_prompt(index, output.prompt_logprobs)
            return [*(replace(token, top=token.top[: self._count]) for token in echoed), *tokens]
        return tokens

    def body(self, tokens: Sequence[ScoredToken]) -> dict[str, Any] | None:
        """`choices[].logprobs`."""
        return self._shape(tokens, self._style.tokens_as_ids) if self._scorers else None

    def next_body(self, index: int, output: Output) -> dict[str, Any] | None:
        """`choices[].logprobs` of the next output alone."""
        return self.body(self.push(index, output))

    def prompt_body(self, index: int, scores: PromptLogprobs | None) -> list[dict[str, Any] | None] | None:
        """`prompt_logprobs`; None where nobody asked."""
        if scores is None or self._style.prompt_logprobs is None:
            return None
        return prompt_logprobs(self._of_prompt(index, scores), self._style.prompt_logprobs)

    def _of_prompt(self, index: int, scores: PromptLogprobs) -> list[ScoredToken]:
        number = index // self._n
        return score_prompt(self._requests[number].prompt, scores, self._echoes[number].unseen, self._tokenizer)
