"""From texts, messages and sampling parameters to the scheduler's requests."""

import secrets
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

from legato.chat.messages import extended, extended_tools, normalized
from legato.chat.template import ChatTemplate
from legato.core.answers import Reasoning
from legato.core.errors import CheckpointError, RequestError
from legato.core.types import BeamOptions, Breakpoint, Request, SamplingParams, Service
from legato.protocol.cache_control import Hint
from legato.sampling.params import validate
from legato.tokenizer.assets import TextAssets
from legato.tokenizer.tokenizer import Tokenizer

__all__ = ["Echo", "Inputs"]

MAX_SALT = 128  # characters
MAX_BAD_WORD_TOKENS = 64
GIVEN_TEMPLATES = 16  # of requests, kept compiled
MAX_GIVEN_TEMPLATE = 1 << 16  # characters
_NO_WISH = Service()
_SEED_BITS = 53  # drawn seeds survive JSON numbers in every language


class Echo(NamedTuple):
    """A prompt as an answer repeats it. unseen: how many tokens at its beginning are not part of the text."""

    text: str
    unseen: int


class Inputs:
    """Knows the model's tokenizer, chat template, end tokens and limits. Safe to use from several threads.

    vocab_size: ids below it are the model's tokens. check: the scheduler's verdict
    on whether a request can ever fit. defaults: what a request that sets nothing gets. seed: for requests that have
    none (None: a random one each).
    """

    def __init__(
        self,
        assets: TextAssets,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        max_model_len: int,
        check: Callable[[Request], None],
        defaults: SamplingParams,
        seed: int | None = None,
    ) -> None:
        self.max_model_len = max_model_len
        self.defaults = defaults
        self._tokenizer = tokenizer
        self.has_chat_template = assets.chat_template is not None
        self._template = ChatTemplate(assets.chat_template, tokenizer)
        self._given_template = lru_cache(GIVEN_TEMPLATES)(partial(_given_template, tokenizer))
        self._end_token_ids = frozenset(assets.eos_token_ids)
        self.vocab_size = vocab_size
        self._check = check
        self._seed = seed

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        chat_template: str | None = None,
        add_special_tokens: bool = False,
        **kwargs: Any,
    ) -> list[int]:
        """Token ids of a talk, rendered by the model's chat template, or by `chat_template`; `kwargs` go to it.

        add_special_tokens: also put the model's begin and end tokens around it; a template usually writes its own.
        """
        template = self._template if chat_template is None else self._given_template(chat_template)
        ids = template.prompt(messages, **kwargs)
        return self._tokenizer.surrounded(ids) if add_special_tokens else ids

    def truncated(self, prompt: list[int], limit: int | None, side: str, max_tokens: int | None) -> list[int]:
        """The last `limit` tokens of a prompt, or with side "right" the first. None: all.

        -1: as many as leave room for `max_tokens` (None: for one token) in the context.
        """
        if limit is None:
            return prompt
        if limit != -1 and limit < 1:
            raise RequestError(
                f"truncate_prompt_tokens must be -1 or at least 1, got {limit}", param="truncate_prompt_tokens"
            )
        size = max(1, self.max_model_len - (max_tokens or 1)) if limit == -1 else limit
        return prompt[:size] if side == "right" else prompt[-size:]

    def breakpoints(
        self, prompt: Sequence[int], messages: Sequence[Mapping[str, Any]], hints: Sequence[Hint], **kwargs: Any
    ) -> tuple[Breakpoint, ...]:
        """Where in `prompt`, which `chat` made of the same messages and `kwargs`, the hinted prefixes end.

        Each costs another rendering: of the messages or tools with one character more where the hint is. One whose
        place the template does not render is left out.
        """
        points = []
        for hint in hints:
            if hint.tool is None:
                changed = self.chat(extended(messages, hint.message, hint.part), **kwargs)
            elif kwargs["tools"]:
                changed = self.chat(messages, **{**kwargs, "tools": extended_tools(kwargs["tools"], hint.tool)})
            else:
                continue
            if changed != prompt:
                points.append(Breakpoint(_common(prompt, changed), hint.ttl_s))
        return tuple(sorted(points, key=lambda point: point.length))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt text. It is all that the model sees, so control tokens may be written out in it."""
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens, parse_special=True)

    def final_message(self, messages: Sequence[Mapping[str, Any]]) -> Echo:
        """The content of the last message, as an answer that continues it repeats it."""
        return Echo(normalized(messages)[-1]["content"], 0)

    def echo(self, prompt: Sequence[int], *, whole: bool) -> Echo:
        """The text of a prompt. whole: also of the tokens at its beginning that `encode` puts there."""
        unseen = 0 if whole else self._tokenizer.num_begin_tokens(prompt)
        return Echo(self._tokenizer.decode(prompt[unseen:], skip_special_tokens=False), unseen)

    def request(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        param: str = "prompt",
        default_max_tokens: int | None = None,
        arrival_s: float | None = None,
        cache_salt: str | None = None,
        breakpoints: tuple[Breakpoint, ...] = (),
        reasoning: Reasoning | None = None,
        shown_token_ids: frozenset[int] = frozenset(),
        service: Service = _NO_WISH,
        beam: BeamOptions | None = None,
    ) -> Request:
        """A request the scheduler can take, or a RequestError. `param` is the field that the prompt came from.

        arrival_s: when it came, by time.monotonic(); now, if not given.
        cache_salt: what is computed is shared only with requests that have the same one; None is one of them.
        A grammar is not compiled here: `Grammars.compiled` does that with the request.
        A `max_tokens` that does not fit into the context is refused; None means `default_max_tokens`, cut to what is
        left of the context (None: all that is left).
        """
        params = _in_one_form(params)
        validate(params, self.vocab_size, self.max_model_len)
        _check_salt(cache_salt)
        self._check_prompt(prompt, param)
        left = self.max_model_len - len(prompt)
        if params.max_tokens is not None and params.max_tokens > left:
            raise self._too_long(f"{len(prompt)} tokens in the {param} and {params.max_tokens} for the answer", param)
        request = Request(
            request_id=secrets.token_hex(12),
            prompt=array("i", prompt),
            params=replace(
                params,
                max_tokens=min(left, default_max_tokens or left) if params.max_tokens is None else params.max_tokens,
                seed=self._seed_for(params),
            ),
            arrival_s=time.monotonic() if arrival_s is None else arrival_s,
            end_token_ids=frozenset() if params.ignore_eos else self._end_token_ids,
            cache_salt=cache_salt or "",
            bad_words=self._bad_words(params.bad_words),
            vocab_size=self.vocab_size,
            breakpoints=breakpoints,
            reasoning=reasoning,
            shown_token_ids=shown_token_ids,
            service=service,
            beam=beam,
        )
        _check_some_are_allowed(request)
        self._check(request)
        return request

    def _check_prompt(self, prompt: Sequence[int], param: str) -> None:
        if not prompt:
            raise RequestError(f"{param} is empty: it gives no tokens", param=param, code="empty_prompt")
        if min(prompt) < 0 or max(prompt) >= self.vocab_size:
            raise RequestError(
                f"{param} holds a token id outside the vocabulary (0 to {self.vocab_size - 1})",
                param=param,
                code="invalid_token_id",
            )
        if len(prompt) >= self.max_model_len:
            raise self._too_long(f"{len(prompt)} tokens in the {param}, which leaves none for the answer", param)

    def _bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The tokens of each word, at the beginning of a text and after a space."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            bare = word.lstrip() or word
            for text in (bare, f" {bare}"):
                ids = tuple(self._tokenizer.encode(text, add_special_tokens=False))
                if not 1 <= len(ids) <= MAX_BAD_WORD_TOKENS:
                    raise RequestError(
                        f"bad_words holds a word of {len(ids)} tokens; 1 to {MAX_BAD_WORD_TOKENS} are allowed",
                        param="bad_words",
                    )
                found[ids] = None
        return tuple(found)

    def _too_long(self, asked: str, param: str) -> RequestError:
        message = f"the model's context is {self.max_model_len} tokens, but there are {asked}"
        return RequestError(message, param=param, code="context_length_exceeded")

    def _seed_for(self, params: SamplingParams) -> int:
        if params.seed is not None:
            return params.seed
        return secrets.randbits(_SEED_BITS) if self._seed is None else self._seed


def _given_template(tokenizer: Tokenizer, source: str) -> ChatTemplate:
    if len(source) > MAX_GIVEN_TEMPLATE:
        raise RequestError(f"chat_template is longer than {MAX_GIVEN_TEMPLATE} characters", param="chat_template")
    try:
        return ChatTemplate(source, tokenizer, "chat_template")
    except CheckpointError as error:
        raise RequestError(str(error), param="chat_template") from error


def _check_some_are_allowed(request: Request) -> None:
    params = request.params
    if params.min_tokens and params.allowed_token_ids is not None:
        ends = request.end_token_ids.union(params.stop_token_ids)
        if ends.issuperset(params.allowed_token_ids):
            raise RequestError(
                "allowed_token_ids holds nothing but tokens that end the answer, which min_tokens forbids",
                param="allowed_token_ids",
            )


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two prompts have in common from the beginning."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(left), len(right)))


def _check_salt(salt: str | None) -> None:
    """vLLM's rule, so that a salt that works here works there."""
    if salt is None:
        return
    if not isinstance(salt, str) or not 1 <= len(salt) <= MAX_SALT or any(c in "@/\\\0" for c in salt):
        raise RequestError(
            f"cache_salt must be a text of 1 to {MAX_SALT} characters without @, /, \\ and NUL", param="cache_salt"
        )


def _in_one_form(params: SamplingParams) -> SamplingParams:
    """Lists as tuples, and the grammar under its own name."""
    described = params.structured_outputs
    if described is not None and params.grammar is not None:
        raise RequestError("structured_outputs and grammar are two names for one thing", param="grammar")
    return replace(
        params,
        grammar=params.grammar if described is None else described.to_grammar(),
        stop=_as_tuple(params.stop),
        stop_token_ids=tuple(params.stop_token_ids),
        allowed_token_ids=None if params.allowed_token_ids is None else tuple(params.allowed_token_ids),
        bad_words=tuple(params.bad_words),
        logprob_token_ids=tuple(params.logprob_token_ids),
    )


def _as_tuple(stop: str | Sequence[str]) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop)
