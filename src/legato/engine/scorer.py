"""Outputs with log probabilities to scored tokens: their bytes, and where in the text they begin."""

from collections.abc import Sequence

from legato.core.types import PromptLogprobs, Request
from legato.engine.outputs import Output
from legato.protocol.logprobs import ScoredToken, TokenLogprob
from legato.tokenizer.tokenizer import Tokenizer

__all__ = ["Scorer", "score_prompt"]


def score_prompt(prompt: Sequence[int], scores: PromptLogprobs, unseen: int, tokenizer: Tokenizer) -> list[ScoredToken]:
    """The tokens of a prompt; the first has no log probability. unseen: how many of its first ones are not its text."""
    decoder = tokenizer.decoder(skip_special_tokens=False)
    length = 0
    scored = []

    def named(token: int, logprob: float | None, shown: bool = True) -> TokenLogprob:
        return TokenLogprob(token, tokenizer.token_bytes(token), shown, logprob)

    for i, token in enumerate(prompt):
        chosen = named(token, scores.logprobs[i - 1] if i else None, i >= unseen)
        others = tuple(named(other, value) for other, value in scores.top(i - 1)) if i else ()
        scored.append(ScoredToken(chosen, length, others))
        if i >= unseen:
            length += len(decoder.push((token,)))
    return scored


class Scorer:
    """Follows one choice of a request that asked for log probabilities. begin: characters of text before it."""

    def __init__(self, request: Request, tokenizer: Tokenizer, begin: int = 0) -> None:
        params = request.params
        self._tokenizer = tokenizer
        self._skips_special = params.skip_special_tokens
        self._shown = request.shown_token_ids
        self._stops = () if params.include_stop_str_in_output else request.end_token_ids.union(params.stop_token_ids)
        self._decoder = tokenizer.decoder(params.skip_special_tokens, continuation=True, shown=self._shown)
        self._length = begin

    def push(self, output: Output) -> list[ScoredToken]:
        """The tokens of the next output. An end token that is not part of the text is one of them."""
        tops = output.top_logprobs or ((),) * len(output.tokens)
        ends = output.finish is not None and bool(output.tokens) and output.tokens[-1] in self._stops
        last = len(output.tokens) - 1
        scored = []
        for i, (token, logprob, top) in enumerate(zip(output.tokens, output.logprobs, tops, strict=True)):
            hidden = ends and i == last
            scored.append(self._score(token, logprob, top, hidden))
            if not hidden:
                self._length += len(self._decoder.push((token,)))
        return scored

    def _score(self, token: int, logprob: float, top: Sequence[tuple[int, float]], hidden: bool) -> ScoredToken:
        chosen = TokenLogprob(token, self._tokenizer.token_bytes(token), not hidden and self._shows(token), logprob)
        others = tuple(TokenLogprob(id, self._tokenizer.token_bytes(id), self._shows(id), value) for id, value in top)
        return ScoredToken(chosen, self._length, others)

    def _shows(self, token: int) -> bool:
        return token in self._shown or not (self._skips_special and self._tokenizer.is_special(token))
