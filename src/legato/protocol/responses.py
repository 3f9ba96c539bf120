"""Response bodies and server-sent events.

A stream's frames are put together from byte strings made once per stream: per chunk only the text is encoded.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from legato.core.answers import Delta
from legato.protocol.answers import delta_body

__all__ = ["DONE", "Choice", "Frames", "Reply", "Style", "Usage", "dump"]

DONE = b"data: [DONE]\n\n"


def dump(value: Any) -> bytes:
    """Strict JSON: NaN and Infinity raise ValueError."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one HTTP request: its prompts once each, and all choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    written_tokens: int | None = None  # newly computed and pinned; None where no cache hint was given
    reasoning_tokens: int | None = None  # of the completion, before its answer; None where there can be none

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            **self._cache(),
        }
        if self.reasoning_tokens is not None:
            body["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return body

    def _cache(self) -> dict[str, Any]:
        """What the prompt read from the cache; after a hint also what it wrote there, under both usual names."""
        if self.written_tokens is None:
            return {"prompt_tokens_details": {"cached_tokens": self.cached_tokens}}
        return {
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens, "cache_write_tokens": self.written_tokens},
            "cache_read_input_tokens": self.cached_tokens,
            "cache_creation_input_tokens": self.written_tokens,
        }


@dataclass(frozen=True, slots=True)
class Style:
    """What an answer is to hold, and how it is to come.

    interval: least tokens of a choice per chunk, but for its first and last one. tokens_as_ids: log probabilities name
    tokens by their ids. prompt_logprobs: alternatives to tell of each token of the prompt; None: nothing of it.
    """

    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    interval: int = 1
    token_ids: bool = False
    tokens_as_ids: bool = False
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A finished choice. `stop_reason` is the stop string or stop token id that ended it. `seed` repeats it.

    logprobs: as `legato.protocol.logprobs` shapes them for chat or completion. The others are None where
    nobody asked for them. message: a chat's, of which `text` is the content that its last chunk brings.
    """

    index: int
    text: str
    finish_reason: str
    stop_reason: str | int | None
    seed: int
    logprobs: dict[str, Any] | None = None
    token_ids: Sequence[int] | None = None
    prompt_token_ids: Sequence[int] | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    message: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """Identity of one response, and its shape: chat or completion. fingerprint: what computed it."""

    chat: bool
    id: str
    created: int
    model: str
    fingerprint: str

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The body of a response that is not streamed."""
        kind = "chat.completion" if self.chat else "text_completion"
        body = {
            **self.head(kind),
            "choices": [self._choice(choice) for choice in choices],
            "usage": usage.body(),
        }
        return dump({**body, **_of_prompt(choices[0])} if self.chat else body)

    def head(self, kind: str) -> dict[str, Any]:
        """What comes before the choices, in a response and in each chunk."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def _choice(self, choice: Choice) -> dict[str, Any]:
        content = {"message": choice.message} if self.chat else {"text": choice.text}
        body = {"index": choice.index, **content, "logprobs": choice.logprobs, **_end(choice)}
        return body if self.chat else {**body, **_of_prompt(choice)}


def _of_prompt(choice: Choice) -> dict[str, Any]:
    """What is told of the prompt: in each choice of a completion, beside the choices of a chat."""
    ids, scores = choice.prompt_token_ids, choice.prompt_logprobs
    return {
        **({} if ids is None else {"prompt_token_ids": list(ids)}),
        **({} if scores is None else {"prompt_logprobs": scores}),
    }


def _end(choice: Choice) -> dict[str, Any]:
    end = {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason, "seed": choice.seed}
    return end if choice.token_ids is None else {**end, "token_ids": list(choice.token_ids)}


class Frames:
    """Makes the server-sent events of one stream. `usage`, where given, is what was used up to and with a chunk."""

    def __init__(self, reply: Reply, include_usage: bool) -> None:
        head = reply.head("chat.completion.chunk" if reply.chat else "text_completion")
        self._start = dump(head)[:-1]
        self._no_usage = b',"usage":null' if include_usage else b""
        self._text_key = b',"delta":{"content":' if reply.chat else b',"text":'
        self._text_end = b'},"logprobs":' if reply.chat else b',"logprobs":'
        self._chat = reply.chat

    def begin(self, index: int, prompt_token_ids: Sequence[int] | None = None, usage: Usage | None = None) -> bytes:
        """The first chunk of a choice: the role in chat, and the tokens of the prompt where they were asked for."""
        delta = {"delta": {"role": "assistant", "content": ""}} if self._chat else {"text": ""}
        choice: dict[str, Any] = {"index": index, **delta, "logprobs": None, "finish_reason": None}
        if prompt_token_ids is None:
            return self._chunk(dump(choice), usage)
        if not self._chat:
            return self._chunk(dump({**choice, "prompt_token_ids": list(prompt_token_ids)}), usage)
        return self._chunk(dump(choice), usage, b',"prompt_token_ids":' + dump(list(prompt_token_ids)))

    def text(
        self,
        index: int,
        text: str,
        logprobs: dict[str, Any] | None = None,
        token_ids: Sequence[int] | None = None,
        usage: Usage | None = None,
    ) -> bytes:
        """A chunk with more of a choice's text, with the log probabilities of its tokens and with their ids."""
        encoded = json.dumps(text, ensure_ascii=False).encode()
        scores = b"null" if logprobs is None else dump(logprobs)
        ids = b"" if token_ids is None else b',"token_ids":' + dump(list(token_ids))
        start = b'{"index":%d' % index
        content = (start, self._text_key, encoded, self._text_end, scores, b',"finish_reason":null', ids, b"}")
        return self._chunk(b"".join(content), usage)

    def delta(
        self,
        index: int,
        delta: Delta,
        logprobs: dict[str, Any] | None = None,
        token_ids: Sequence[int] | None = None,
        usage: Usage | None = None,
    ) -> bytes:
        """A chunk with more of a choice, whatever it is."""
        if delta.call is None and not delta.reasoning:
            return self.text(index, delta.content, logprobs, token_ids, usage)
        body = {"index": index, "delta": delta_body(delta), "logprobs": logprobs, "finish_reason": None}
        return self._chunk(dump(body if token_ids is None else {**body, "token_ids": list(token_ids)}), usage)

    def finish(self, choice: Choice, usage: Usage | None = None) -> bytes:
        """The last chunk of a choice, with the rest of its text."""
        delta = {"content": choice.text} if choice.text else {}
        content = {"delta": delta} if self._chat else {"text": choice.text}
        body = {"index": choice.index, **content, "logprobs": choice.logprobs, **_end(choice)}
        return self._chunk(dump(body), usage)

    def usage(self, usage: Usage) -> bytes:
        """The chunk without choices, just before `[DONE]`."""
        return self._chunk(b"", usage)

    def _chunk(self, choice: bytes, usage: Usage | None, more: bytes = b"") -> bytes:
        used = self._no_usage if usage is None else b',"usage":' + dump(usage.body())
        return b"".join((b"data: ", self._start, b',"choices":[', choice, b"]", used, more, b"}\n\n"))
