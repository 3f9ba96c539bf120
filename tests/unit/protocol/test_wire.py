"""Whatever a client sends is parsed or refused with a RequestError; whatever we send is strict JSON in whole frames."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.core.errors import EngineError, QueueFullError, RequestError
from legato.core.types import SamplingParams
from legato.protocol.chat import ChatBody, parse_chat
from legato.protocol.completion import CompletionBody, parse_completion
from legato.protocol.errors import describe, error_frame
from legato.protocol.responses import Choice, Frames, Reply, Usage, dump
from legato.sampling.params import validate

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from([10**400, -0.0])
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
FIELDS = st.sampled_from([*CompletionBody.model_fields, *ChatBody.model_fields, "tools", "logprobs", "nonsense"])
MESSAGES = st.lists(
    st.dictionaries(
        st.sampled_from(["role", "content", "name", "tool_calls", "x"]), VALUES | st.just("user"), max_size=4
    )
)
BODIES = st.dictionaries(FIELDS, VALUES, max_size=6)


def refusal(parse: Callable[[bytes], CompletionBody | ChatBody], data: bytes) -> RequestError | None:
    """How a body is refused; None when all of it is understood."""
    try:
        parsed = parse(data)
        validate(parsed.sampling(SamplingParams(max_tokens=None)), 1000, 1000)
        if isinstance(parsed, ChatBody):
            parsed.talk()
            parsed.template_arguments()
        else:
            parsed.prompts()
    except RequestError as error:
        return error
    return None


@given(BODIES, st.text() | MESSAGES | VALUES)
def test_any_object_is_parsed_or_refused(body: dict[str, Any], content: Any) -> None:
    for parse, field in ((parse_completion, "prompt"), (parse_chat, "messages")):
        error = refusal(parse, json.dumps({**body, field: content}).encode())
        if error is not None:
            assert 0 < len(str(error)) < 1000, "a message does not repeat what was sent"
            dump(describe(error)[1])


@given(st.binary(max_size=60))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    for parse in (parse_completion, parse_chat):
        with pytest.raises(RequestError):
            parse(data)


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("include_usage", [True, False])
@given(text=st.text())
def test_frames_hold_their_text_and_end_once(text: str, chat: bool, include_usage: bool) -> None:
    reply = Reply(chat=chat, id="id", created=1, model='a "model"\n', fingerprint="f")
    frames = Frames(reply, include_usage)
    end = Choice(1, text, "stop", "\n\n", 5, message={"role": "assistant", "content": text})
    for frame in (frames.text(1, text), frames.finish(end), frames.begin(1, [2]), frames.usage(Usage(1, 2))):
        body = frame.removeprefix(b"data: ").removesuffix(b"\n\n")
        assert b"\n" not in body
        assert json.loads(body)["model"] == 'a "model"\n'
    chunk = json.loads(frames.text(1, text).removeprefix(b"data: "))
    choice = chunk["choices"][0]
    assert (choice["delta"]["content"] if chat else choice["text"]) == text
    assert choice["index"] == 1
    assert ("usage" in chunk) == include_usage
    whole = json.loads(reply.whole([end], Usage(3, 4, 2)))
    answer = whole["choices"][0]
    assert (answer["message"]["content"] if chat else answer["text"]) == text
    assert whole["usage"]["total_tokens"] == 7


def test_what_is_not_ours_is_told_as_an_internal_error_and_no_more() -> None:
    status, body, _ = describe(KeyError("secret"))
    assert status == 500
    assert "secret" not in json.dumps(body)
    status, body, headers = describe(QueueFullError("full", status=429, retry_after_s=0.2))
    assert (status, body["error"]["type"], headers) == (429, "rate_limit_error", {"retry-after": "1"})


def test_errors_say_the_same_as_an_answer_and_in_a_stream() -> None:
    for error, status, kind, param, code in (
        (EngineError("NaN"), 500, "server_error", None, "engine_error"),
        (RequestError("none fits", param="bad_words"), 400, "invalid_request_error", "bad_words", None),
        (QueueFullError("it ended", status=503), 503, "service_unavailable_error", None, "unavailable"),
    ):
        expected = {"error": {"message": str(error), "type": kind, "param": param, "code": code}}
        assert describe(error)[:2] == (status, expected)
        assert json.loads(error_frame(error).removeprefix(b"data: ")) == expected


def test_numbers_that_are_no_json_are_never_sent() -> None:
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not JSON compliant"):
            dump({"x": value})
