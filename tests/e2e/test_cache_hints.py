"""`cache_control`: where a hint may stand, what usage says of it, and what is refused."""

from collections.abc import Iterator
from typing import Any

import pytest
from harness import Running, assert_error, serving

from legato.core.config import SchedulerConfig
from support.byte_level import ASSETS, VOCAB, byte_level_assets, byte_tokens
from support.scripted import ScriptedExecutor
from support.talking import HERMES_TEMPLATE

LONG = "a system prompt of more than forty-eight characters, all bytes"
HINT = {"type": "ephemeral"}
SYSTEM = {"role": "system", "content": LONG}
BEFORE = 1 + len("system\n") + len(LONG)  # tokens up to the end of LONG: a control token, and a byte each


@pytest.fixture
def server() -> Iterator[Running]:
    with serving(
        ScriptedExecutor(vocab_size=VOCAB, num_blocks=40), ASSETS, scheduler=SchedulerConfig(pin_budget=0.5)
    ) as it:
        yield it


def usage(server: Running, messages: list[dict[str, Any]], **body: Any) -> dict[str, Any]:
    response = server.post("/v1/chat/completions", messages=messages, max_tokens=1, **body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()["usage"]
    return found


def written_and_read(found: dict[str, Any]) -> tuple[int, int]:
    details = found["prompt_tokens_details"]
    assert found["cache_read_input_tokens"] == details["cached_tokens"]
    assert found["cache_creation_input_tokens"] == details["cache_write_tokens"]
    return details["cache_write_tokens"], details["cached_tokens"]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


PLACES: dict[str, dict[str, Any]] = {
    "message": {**SYSTEM, "cache_control": HINT},
    "part": {"role": "system", "content": [{"type": "text", "text": LONG, "cache_control": {**HINT, "ttl": "1h"}}]},
    "null is left out": {**SYSTEM, "cache_control": {**HINT, "ttl": None}},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_hint_pins_the_prefix_up_to_its_place_and_usage_tells(server: Running, place: str) -> None:
    whole = BEFORE // 16 * 16
    assert written_and_read(usage(server, [PLACES[place], user("one")])) == (whole, 0)
    assert written_and_read(usage(server, [PLACES[place], user("two")])) == (0, whole)
    for flood in range(6):
        server.complete([5 + flood] * 330, max_tokens=1)
    assert written_and_read(usage(server, [PLACES[place], user("three")])) == (0, whole)
    assert usage(server, [SYSTEM, user("four")])["prompt_tokens_details"] == {"cached_tokens": whole}
    server.wait_drained()


def test_a_hint_changes_no_prompt(server: Running) -> None:
    messages = [SYSTEM, user("hello")]
    for place in PLACES.values():
        tokens = [server.post("/tokenize", messages=each).json()["tokens"] for each in (messages, [place, messages[1]])]
        assert tokens[0] == tokens[1]


def test_a_hint_in_the_middle_of_a_message(server: Running) -> None:
    parts = [{"type": "text", "text": LONG, "cache_control": HINT}, {"type": "text", "text": "x" * 100}]
    found = usage(server, [{"role": "user", "content": parts}])
    before = BEFORE - len("system") + len("user")
    assert written_and_read(found) == (before // 16 * 16, 0)


def test_the_hint_of_a_body_is_for_its_last_message(server: Running) -> None:
    found = usage(server, [SYSTEM, user("y" * 50)], cache_control=HINT)
    behind = 2 + len("\nassistant\n")  # two control tokens, and a byte each
    assert written_and_read(found) == ((found["prompt_tokens"] - behind) // 16 * 16, 0)


def test_the_hint_of_a_completion_is_for_its_whole_prompt(server: Running) -> None:
    prompts = [byte_tokens(LONG), [7] * 40]
    answer = server.complete(prompts, max_tokens=1, cache_control=HINT)
    assert written_and_read(answer["usage"]) == (len(LONG) // 16 * 16 + 32, 0)
    assert written_and_read(server.complete(prompts, max_tokens=1, cache_control=HINT)["usage"])[0] == 0


def test_a_stream_tells_the_same(server: Running) -> None:
    body: dict[str, Any] = {"messages": [PLACES["message"], user("one")], "max_tokens": 1}
    stream = server.stream("/v1/chat/completions", **body, stream_options={"include_usage": True})
    assert stream.usage is not None
    assert written_and_read(stream.usage) == (BEFORE // 16 * 16, 0)


def test_without_a_hint_usage_says_nothing_of_it(server: Running) -> None:
    found = usage(server, [SYSTEM, user("one")])
    assert found.keys() == {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}
    assert found["prompt_tokens_details"].keys() == {"cached_tokens"}


WRONG: list[Any] = ["5m", {}, {"type": "persistent"}, {"type": "ephemeral", "ttl": "2h"}, {**HINT, "scope": "x"}, [], 1]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_other_shapes_are_refused_by_name(server: Running, wrong: Any) -> None:
    on_message = [{**SYSTEM, "cache_control": wrong}]
    in_part = [user("hi"), {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": wrong}]}]
    chat = "/v1/chat/completions"
    assert_error(server.post(chat, messages=on_message), 400, param="messages[0].cache_control")
    assert_error(server.post(chat, messages=in_part), 400, param="messages[1].content[0].cache_control")
    for body in ({"messages": [SYSTEM]}, {"prompt": LONG}):
        path = chat if "messages" in body else "/v1/completions"
        assert_error(server.post(path, **body, cache_control=wrong), 400)


def test_more_than_four_hints_are_refused(server: Running) -> None:
    messages = [{**user(f"{i}"), "cache_control": HINT} for i in range(4)]
    assert usage(server, messages)
    assert_error(server.post("/v1/chat/completions", messages=messages, cache_control=HINT), 400, param="cache_control")


def test_a_message_of_calls_alone_is_no_trouble(server: Running) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [user("hi"), {"role": "assistant", "tool_calls": [call]}, {**user(LONG), "cache_control": HINT}]
    assert written_and_read(usage(server, messages))[0] > 0
    messages[1]["cache_control"] = HINT
    assert usage(server, messages)


def test_a_hint_on_a_tool_pins_the_tools_up_to_it() -> None:
    """And is not shown to the model."""
    first, second = ({"type": "function", "function": {"name": name, "description": LONG}} for name in ("one", "two"))
    hinted = [first, {**second, "cache_control": HINT}]
    executor = ScriptedExecutor(vocab_size=VOCAB, num_blocks=80)
    config = SchedulerConfig(pin_budget=0.5)
    with serving(executor, byte_level_assets(template=HERMES_TEMPLATE), scheduler=config) as it:
        found = usage(it, [user("hi")], tools=hinted)
        plain = usage(it, [user("hi")], tools=[first, second])
        assert plain["prompt_tokens"] == found["prompt_tokens"]
        written, read = written_and_read(found)
        assert read == 0
        assert 2 * len(LONG) < written < found["prompt_tokens"]
        early = usage(it, [user("hi")], tools=[{**first, "cache_control": HINT}, second], cache_salt="other")
        assert len(LONG) < written_and_read(early)[0] < written
        assert written_and_read(usage(it, [user("hi")], tools=hinted, tool_choice="none", cache_control=HINT))
        wrong = it.post("/v1/chat/completions", messages=[user("hi")], tools=[{**first, "cache_control": 1}])
        assert_error(wrong, 400, param="tools[0].cache_control")
