"""Reasoning over HTTP: its own field, exact counts, and an answer that it does not disturb."""

from collections.abc import Iterator
from typing import Any

import pytest
from harness import Running, assert_error, serving

from legato.core.config import SchedulerConfig
from legato.core.errors import ConfigError
from support.byte_level import ASSETS, byte_level_assets
from support.scripted import ScriptedExecutor
from support.talking import THINKING_TEMPLATE, Saying

THINKING = byte_level_assets(template=THINKING_TEMPLATE, words=("<think>", "</think>"))
CHAT = "/v1/chat/completions"
ASK: list[Any] = [{"role": "user", "content": "Why?"}]
THOUGHT = "<think>\nStop. Think.\n</think>\n\nBecause."
TOOLS = [{"type": "function", "function": {"name": "now"}}]


@pytest.fixture(scope="module")
def saying() -> Saying:
    return Saying(THINKING)


@pytest.fixture(scope="module")
def server(saying: Saying) -> Iterator[Running]:
    cold = SchedulerConfig(enable_prefix_caching=False)
    with serving(ScriptedExecutor(vocab_size=saying.vocab_size, emit=saying), THINKING, scheduler=cold) as it:
        yield it


def answer(server: Running, messages: list[Any] = ASK, **body: Any) -> tuple[dict[str, Any], str, int]:
    """Message, finish reason and reasoning tokens; the same streamed as whole (oracle 1)."""
    body = {"messages": messages, **body}
    response = server.post(CHAT, **body)
    assert response.status_code == 200, response.text
    whole = response.json()
    [choice] = whole["choices"]
    stream = server.stream(CHAT, **body, stream_options={"include_usage": True})
    assert stream.usage == whole["usage"]
    joined: dict[str, str] = {}
    for chunk in stream.chunks[:-1]:
        for name, value in chunk["choices"][0]["delta"].items():
            if name != "tool_calls":
                joined[name] = joined.get(name, "") + value
    message = choice["message"]
    assert joined == {
        "role": "assistant",
        "content": message["content"] or "",
        **{name: message[name] for name in ("reasoning", "reasoning_content") if name in message},
    }
    assert message.get("reasoning") == message.get("reasoning_content")
    return message, choice["finish_reason"], whole["usage"]["completion_tokens_details"]["reasoning_tokens"]


def test_reasoning_is_cut_off_and_counted(server: Running, saying: Saying) -> None:
    saying.set(THOUGHT)
    message, finish, count = answer(server)
    assert (message["reasoning"], message["content"], finish) == ("Stop. Think.", "Because.", "stop")
    assert count == len(saying.tokens(THOUGHT.split("\n\n")[0]))


def test_the_template_may_open_the_reasoning(server: Running, saying: Saying) -> None:
    saying.set("Hm.</think>Because.")
    message, _, count = answer(server, chat_template_kwargs={"opened": True})
    assert (message["reasoning"], message["content"], count) == ("Hm.", "Because.", 4)


def test_an_answer_without_reasoning_is_content(server: Running, saying: Saying) -> None:
    saying.set("\n<b>Because")
    message, _, count = answer(server)
    assert (message.get("reasoning"), message["content"], count) == (None, "\n<b>Because", 0)
    saying.set(THOUGHT)
    usage = server.post(CHAT, messages=ASK, chat_template_kwargs={"enable_thinking": False}).json()["usage"]
    assert "completion_tokens_details" not in usage, "the prompt says that there is none"


def test_reasoning_cut_by_max_tokens(server: Running, saying: Saying) -> None:
    saying.set(THOUGHT)
    message, finish, count = answer(server, max_tokens=5)
    assert (message["reasoning"], message["content"], finish, count) == ("Sto", None, "length", 5)


def test_include_reasoning_false_hides_it_and_counts_it(server: Running, saying: Saying) -> None:
    saying.set(THOUGHT)
    message, _, count = answer(server, include_reasoning=False)
    assert message == {"role": "assistant", "content": "Because.", "refusal": None}
    assert count > 0


def test_a01_stop_strings_do_not_apply_to_reasoning(server: Running, saying: Saying) -> None:
    saying.set(THOUGHT)
    message, finish, _ = answer(server, stop=["Think", "."])
    assert (message["reasoning"], message["content"], finish) == ("Stop. Think.", "Because", "stop")


def test_calls_follow_reasoning(server: Running, saying: Saying) -> None:
    saying.set('<think>\nThe <tool_call> tag.\n</think>\n<tool_call>{"name": "now"}</tool_call>')
    message, finish, _ = answer(server, tools=TOOLS)
    assert (message["reasoning"], finish) == ("The <tool_call> tag.", "tool_calls")
    assert message["tool_calls"][0]["function"]["name"] == "now"


def test_logprobs_cover_reasoning_too(server: Running, saying: Saying) -> None:
    count = saying.set(THOUGHT)
    choice = server.post(CHAT, messages=ASK, logprobs=True).json()["choices"][0]
    assert len(choice["logprobs"]["content"]) == count


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_goes_back_to_the_template(server: Running, name: str) -> None:
    talk = [*ASK, {"role": "assistant", "content": "Because.", name: "Hm."}, *ASK]
    tokens = server.post("/tokenize", messages=talk).json()["tokens"]
    assert "<think>\nHm.\n</think>\n\nBecause." in server.post("/detokenize", tokens=tokens).json()["prompt"]


def test_reasoning_effort_goes_to_a_template_that_has_it(server: Running, saying: Saying) -> None:
    saying.set("Because.")
    assert_error(server.post(CHAT, messages=ASK, reasoning_effort="low"), 400, param="reasoning_effort")
    assert_error(server.post(CHAT, messages=ASK, reasoning_effort="huge"), 400, param="reasoning_effort")
    assets = byte_level_assets(template="{% for m in messages %}{{ m.content }}{% endfor %} {{ reasoning_effort }}")
    with serving(ScriptedExecutor(vocab_size=saying.vocab_size, emit=saying), assets) as other:
        tokens = other.post("/tokenize", messages=ASK, reasoning_effort="low").json()["tokens"]
        assert other.post("/detokenize", tokens=tokens).json()["prompt"] == "Why? low"
        body = {"messages": ASK, "reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}
        assert_error(other.post(CHAT, **body), 400, param="reasoning_effort")


def test_completions_are_not_read(server: Running, saying: Saying) -> None:
    saying.set(THOUGHT)
    assert server.complete("x", max_tokens=100)["choices"][0]["text"] == THOUGHT


def test_a_flag_turns_it_off_or_takes_it_for_granted(saying: Saying) -> None:
    executor = ScriptedExecutor(vocab_size=saying.vocab_size, emit=saying)
    with serving(executor, THINKING, reasoning_parser="none") as server:
        saying.set(THOUGHT)
        assert server.post(CHAT, messages=ASK).json()["choices"][0]["message"]["content"] == THOUGHT
    executor = ScriptedExecutor(vocab_size=saying.vocab_size, emit=saying)
    with serving(executor, THINKING, reasoning_parser="deepseek_r1") as server:
        saying.set("Hm.</think>Because.")
        assert server.post(CHAT, messages=ASK).json()["choices"][0]["message"]["reasoning"] == "Hm."


def test_a_model_without_the_tokens_ends_the_start() -> None:
    saying = Saying(ASSETS)
    executor = ScriptedExecutor(vocab_size=saying.vocab_size, emit=saying)
    with pytest.raises(ConfigError, match="<think> is not a token"), serving(executor, reasoning_parser="qwen3"):
        pass


@pytest.mark.parametrize("text", ['<think>\nStop. Think.\n</think>{"a": 1}', '{"a": 1}'])
def test_structured_output_applies_behind_the_reasoning(server: Running, saying: Saying, text: str) -> None:
    saying.set(text)
    message, finish, _ = answer(server, response_format={"type": "json_object"})
    assert (message["content"], finish) == ('{"a": 1}', "stop")
    assert message.get("reasoning") == ("Stop. Think." if "<think>" in text else None)


def test_forced_calls_come_behind_the_reasoning(server: Running, saying: Saying) -> None:
    saying.set('<think>\nHm.\n</think><tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')
    message, finish, _ = answer(server, tools=TOOLS, tool_choice="required")
    assert (message["reasoning"], finish) == ("Hm.", "tool_calls")
    assert message["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}
