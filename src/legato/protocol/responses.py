"""Response bodies and server-sent events.

A stream's frames are put together from byte strings made once per stream: per chunk only the text is encoded.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["DONE", "Choice", "Frames", "Reply", "Usage", "dump"]

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

    def body(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            **self._cache(),
        }

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
class Choice:
    """A finished choice. `stop_reason` is the stop string or stop token id that ended it. `seed` repeats it.

    logprobs: as `legato.protocol.logprobs` shapes them for chat or completion.
    """

    index: int
    text: str
    finish_reason: str
    stop_reason: str | int | None
    seed: int
    logprobs: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """Identity of one response, and its shape: chat or completion."""

    chat: bool
    id: str
    created: int
    model: str

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The body of a response that is not streamed."""
        return dump(
            {
                "id": self.id,
                "object": "chat.completion" if self.chat else "text_completion",
                "created": self.created,
                "model": self.model,
                "choices": [self._choice(choice) for choice in choices],
                "usage": usage.body(),
            }
        )

    def _choice(self, choice: Choice) -> dict[str, Any]:
        content = (
            {"message": {"role": "assistant", "content": choice.text, "refusal": None}}
            if self.chat
            else {"text": choice.text}
        )
        return {"index": choice.index, **content, "logprobs": choice.logprobs, **_end(choice)}


def _end(choice: Choice) -> dict[str, Any]:
    return {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason, "seed": choice.seed}


class Frames:
    """Makes the server-sent events of one stream."""

    def __init__(self, reply: Reply, include_usage: bool) -> None:
        head = {
            "id": reply.id,
            "object": "chat.completion.chunk" if reply.chat else "text_completion",
            "created": reply.created,
            "model": reply.model,
        }
        self._start = b"data: " + dump(head)[:-1] + b',"choices":['
        self._close = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._text_key = b',"delta":{"content":' if reply.chat else b',"text":'
        self._text_end = b'},"logprobs":' if reply.chat else b',"logprobs":'
        self._chat = reply.chat

    def role(self, index: int) -> bytes:
        """The first chunk of a chat choice."""
        choice = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}' % index
        return self._start + choice + self._close

    def text(self, index: int, text: str, logprobs: dict[str, Any] | None = None) -> bytes:
        """A chunk with more of a choice's text, and with the log probabilities of its tokens."""
        encoded = json.dumps(text, ensure_ascii=False).encode()
        scores = b"null" if logprobs is None else dump(logprobs)
        content = (b'{"index":%d' % index, self._text_key, encoded, self._text_end, scores, b',"finish_reason":null}')
        return b"".join((self._start, *content, self._close))

    def finish(self, choice: Choice) -> bytes:
        """The last chunk of a choice, with the rest of its text."""
        delta = {"content": choice.text} if choice.text else {}
        content = {"delta": delta} if self._chat else {"text": choice.text}
        body = {"index": choice.index, **content, "logprobs": choice.logprobs, **_end(choice)}
        return self._start + dump(body) + self._close

    def usage(self, usage: Usage) -> bytes:
        """The chunk without choices, just before `[DONE]`."""
        return self._start + b'],"usage":' + dump(usage.body()) + b"}\n\n"
