"""Tool calls over HTTP, streamed and not, with the official client."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from harness import MODEL, Running, assert_error, serving

from legato.core.config import SchedulerConfig
from support.byte_level import ASSETS, byte_level_assets
from support.scripted import ScriptedExecutor
from support.talking import HERMES_TEMPLATE, MISTRAL_TEMPLATE, Saying

HERMES = byte_level_assets(template=HERMES_TEMPLATE)
MISTRAL = byte_level_assets(template=MISTRAL_TEMPLATE, controls=("[TOOL_CALLS]",))
COLD = SchedulerConfig(enable_prefix_caching=False)  # the second answer has the usage of the first
CHAT = "/v1/chat/completions"
ASK: list[Any] = [{"role": "user", "content": "Weather?"}]
CITY = {"type": "string", "maxLength": 8}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": CITY}, "required": ["city"]},
    },
}
TOOLS: list[Any] = [WEATHER, {"type": "function", "function": {"name": "now"}}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def saying() -> Saying:
    return Saying(HERMES)


@pytest.fixture(scope="module")
def server(saying: Saying) -> Iterator[Running]:
    with serving(ScriptedExecutor(vocab_size=saying.vocab_size, emit=saying), HERMES, scheduler=COLD) as it:
        yield it


def both_ways(server: Running, **body: Any) -> tuple[dict[str, Any], str, list[Any]]:
    """Message without ids, finish reason and deltas of an answer; the same streamed as whole (oracle 1)."""
    body = {"messages": ASK, "model": MODEL, "tools": TOOLS, "seed": 1, **body}
    whole = server.api.chat.completions.create(**body)
    stream = list(server.api.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    message = whole.choices[0].message.model_dump(exclude_none=True)
    assert stream[-1].usage == whole.usage
    deltas = [chunk.choices[0].delta for chunk in stream if chunk.choices]
    ends = [chunk.choices[0].finish_reason for chunk in stream if chunk.choices]
    assert ends == [None] * (len(ends) - 1) + [whole.choices[0].finish_reason]
    calls: list[dict[str, Any]] = []
    ids = set()
    for delta in deltas:
        for call in delta.tool_calls or ():
            if call.index == len(calls):
                assert call.id
                assert call.type == "function"
                ids.add(call.id)
                calls.append({"name": call.function.name, "arguments": call.function.arguments})
            else:
                assert (call.id, call.type, call.function.name) == (None, None, None), "sent again"
                assert call.index == len(calls) - 1
                calls[call.index]["arguments"] += call.function.arguments
    answered = message.pop("tool_calls", [])
    ids |= {call.pop("id") for call in answered}
    assert len(ids) == 2 * len(calls), "ids are unique"
    assert answered == [{"type": "function", "function": call} for call in calls]
    assert (message.get("content") or "") == "".join(delta.content or "" for delta in deltas)
    message["tool_calls"] = [(call["name"], json.loads(call["arguments"])) for call in calls]
    return message, str(whole.choices[0].finish_reason), deltas


def test_a23_two_calls_are_the_same_streamed_as_whole(server: Running, saying: Saying) -> None:
    saying.set(f"Let me see.\n{CALL}\n{NOW}")
    message, finish, deltas = both_ways(server)
    assert message == {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": [("get_weather", {"city": "Köln"}), ("now", {})],
    }
    assert finish == "tool_calls"
    starts = [delta.tool_calls[0] for delta in deltas if delta.tool_calls and delta.tool_calls[0].id]
    assert [(call.index, call.function.name) for call in starts] == [(0, "get_weather"), (1, "now")]
    assert all(call.id.startswith("call_") for call in starts)


def test_answers_that_are_looked_through_for_calls_are_counted_as_in_vllm(saying: Saying) -> None:
    with serving(ScriptedExecutor(vocab_size=saying.vocab_size, emit=saying), HERMES) as server:

        def counts() -> dict[tuple[str, str], float]:
            return {
                (mode, outcome): server.engine.metrics.registry.get_sample_value(
                    "vllm:tool_call_parser_invocations_total",
                    {"model_name": MODEL, "mode": mode, "outcome": outcome, "request_type": "chat_completions"},
                )
                or 0
                for mode in ("streaming", "non_streaming")
                for outcome in ("tool_call", "no_tool_call")
            }

        whole = {"messages": ASK, "tools": TOOLS}
        saying.set(CALL)
        server.post(CHAT, **whole, n=2, temperature=1)
        saying.set("No.")
        server.post(CHAT, **whole)
        server.post(CHAT, messages=ASK)  # nobody looks for calls
        server.post(CHAT, **whole, tool_choice="none")
        assert counts() == {
            ("streaming", "tool_call"): 0,
            ("streaming", "no_tool_call"): 0,
            ("non_streaming", "tool_call"): 2,
            ("non_streaming", "no_tool_call"): 1,
        }
        saying.set(CALL)
        stream = server.stream(CHAT, **whole)
        calls = [chunk for chunk in stream.chunks if chunk["choices"][0]["delta"].get("tool_calls")]
        found = counts()
        assert 1 <= found["streaming", "tool_call"] <= len(calls)
        assert found["streaming", "no_tool_call"] > 0


def test_a_call_alone_has_no_content(server: Running, saying: Saying) -> None:
    saying.set(CALL)
    assert both_ways(server, tool_choice="auto")[0].keys() == {"role", "tool_calls"}
    assert server.post(CHAT, messages=ASK, tools=TOOLS).json()["choices"][0]["message"]["content"] is None


@pytest.mark.parametrize(
    "text", [CALL.replace("get_weather", "get_time"), CALL.replace('"}', "'}"), "a <tool", "Hello"]
)
def test_what_is_no_call_is_content(server: Running, saying: Saying, text: str) -> None:
    saying.set(text)
    assert both_ways(server)[:2] == ({"role": "assistant", "content": text, "tool_calls": []}, "stop")


def test_a_call_cut_by_max_tokens_is_content(server: Running, saying: Saying) -> None:
    saying.set("So: " + CALL)
    message, finish, _ = both_ways(server, max_tokens=40)
    assert (message["content"], finish) == (saying.text(saying.tokens("So: " + CALL)[:40]), "length")


def test_a01_stop_strings_apply_to_calls_as_well(server: Running, saying: Saying) -> None:
    saying.set("So: " + CALL)
    message, finish, _ = both_ways(server, stop="arguments")
    assert (message["content"], finish) == (("So: " + CALL).split("arguments")[0], "stop")


def test_a_forced_call_that_a_stop_string_cuts_is_no_call_to_make(server: Running, saying: Saying) -> None:
    """Its arguments are no JSON; where the stop string comes behind them, they are."""
    saying.set(CALL)
    for stop, arguments, reason in (("ö", '{"city": "K', "stop"), ("</tool", '{"city": "Köln"}', "tool_calls")):
        body = {"messages": ASK, "tools": TOOLS, "tool_choice": "required", "stop": stop}
        choice = server.post(CHAT, **body).json()["choices"][0]
        assert choice["message"]["tool_calls"][0]["function"]["arguments"] == arguments
        assert choice["finish_reason"] == reason
        ends = [each["finish_reason"] for chunk in server.stream(CHAT, **body).chunks for each in chunk["choices"]]
        assert ends[-1] == reason


def test_ids_differ_between_choices(server: Running, saying: Saying) -> None:
    saying.set(CALL + NOW)
    choices = server.post(CHAT, messages=ASK, tools=TOOLS, n=3).json()["choices"]
    assert len({call["id"] for choice in choices for call in choice["message"]["tool_calls"]}) == 6


@pytest.mark.parametrize("stream", [False, True])
def test_a09_every_token_of_a_call_has_its_logprob(server: Running, saying: Saying, stream: bool) -> None:
    count = saying.set("Hm. " + CALL)
    body: dict[str, Any] = {"messages": ASK, "tools": TOOLS, "logprobs": True, "top_logprobs": 2}
    if stream:
        chunks = [c for chunk in server.stream(CHAT, **body).chunks for c in chunk["choices"]]
        entries = [entry for chunk in chunks for entry in (chunk["logprobs"] or {"content": []})["content"]]
    else:
        entries = server.post(CHAT, **body).json()["choices"][0]["logprobs"]["content"]
    assert len(entries) == count
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == "Hm. " + CALL


def test_tool_choice_none_neither_tells_nor_reads(server: Running, saying: Saying) -> None:
    saying.set(CALL)
    message, finish, _ = both_ways(server, tool_choice="none")
    assert (message["content"], finish) == (CALL, "stop")
    told = server.post(CHAT, messages=ASK, tools=TOOLS).json()["usage"]["prompt_tokens"]
    untold = server.post(CHAT, messages=ASK, tools=TOOLS, tool_choice="none").json()["usage"]["prompt_tokens"]
    assert untold == server.post(CHAT, messages=ASK).json()["usage"]["prompt_tokens"] < told


def test_a19_null_means_left_out(server: Running, saying: Saying) -> None:
    saying.set(CALL)
    nothing = dict.fromkeys(("tools", "tool_choice", "parallel_tool_calls", "include_reasoning"))
    assert server.post(CHAT, messages=ASK, **nothing).json()["choices"][0]["message"]["content"] == CALL


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": []}, "tools"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": ["x"]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "x": 1}}]}, "tools[0].function.x"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters",
        ),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "then"}}}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
    ],
)
def test_a20_bad_tools_are_refused_by_name(server: Running, body: dict[str, Any], param: str) -> None:
    assert_error(server.post(CHAT, messages=ASK, **body), 400, param=param)


def talk_with_results(content: Any) -> list[Any]:
    call = {"type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Köln"}'}}
    return [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", **call}, {"id": "call_2", **call}]},
        {"role": "tool", "tool_call_id": "call_1", "content": content},
        {"role": "tool", "tool_call_id": "call_2", "content": "rain"},
    ]


def prompt_of(server: Running, messages: list[Any], **body: Any) -> str:
    """The prompt of a chat as text, by way of /tokenize and /detokenize; the chat has as many tokens."""
    tokens = server.post("/tokenize", messages=messages, **body).json()["tokens"]
    assert server.post(CHAT, messages=messages, **body).json()["usage"]["prompt_tokens"] == len(tokens)
    return str(server.post("/detokenize", tokens=tokens).json()["prompt"])


@pytest.mark.parametrize("content", ["sun", [{"type": "text", "text": "sun"}]])
def test_a25_calls_and_results_go_back_to_the_template(server: Running, content: Any) -> None:
    text = prompt_of(server, talk_with_results(content), tools=TOOLS)
    call = '<tool_call>{"name": "get_weather", "arguments": {"city": "Köln"}}</tool_call>'
    assert f"<|im_start|>assistant\n{call}{call}<|im_end|>\n<|im_start|>tool\nsun<|im_end|>\n" in text
    assert json.loads(text.split("\n")[1].removesuffix(" Call in <tool_call>.<|im_end|>")) == TOOLS


def test_a_template_without_tools_gets_them_as_text() -> None:
    saying = Saying(ASSETS)
    with serving(ScriptedExecutor(vocab_size=saying.vocab_size, emit=saying)) as server:
        saying.set(CALL)
        choice = server.post(CHAT, messages=ASK, tools=TOOLS).json()["choices"][0]
        assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
        text = prompt_of(server, talk_with_results("sun"), tools=TOOLS)
        assert f"<tools>\n{json.dumps(WEATHER)}\n" in text
        assert (
            f"assistant\n{CALL}\n{CALL}<|im_end|>\n<|im_start|>user\n<tool_response>\nsun\n</tool_response>\n" in text
        )
        assert text.count("<|im_start|>user") == 2, "results that belong together are one turn"
        system = [{"role": "system", "content": "Be brief."}, *ASK]
        assert prompt_of(server, system, tools=TOOLS).startswith("<|im_start|>system\nBe brief.\n\nYou can call")


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        ([{"role": "tool", "tool_call_id": "c"}], "messages[0].content"),
        ([{"role": "user", "content": "x", "tool_calls": [{}]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "content": None}], "messages[0].content"),
        ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{"id": "c"}]}], "messages[0].tool_calls[0].function"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}],
            "messages[0].tool_calls[0].id",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {}}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{"}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "[1]"}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        ([{"role": "function", "content": "x"}], "messages[0].role"),
    ],
)
def test_a20_bad_calls_and_results_are_refused_by_name(server: Running, messages: list[Any], param: str) -> None:
    assert_error(server.post(CHAT, messages=messages), 400, param=param)


def test_g03_control_tokens_in_tools_and_results_stay_text(server: Running) -> None:
    def turns(word: str) -> int:
        tools = [{"type": "function", "function": {"name": "f", "description": word}}]
        tokens = server.post("/tokenize", messages=talk_with_results(word), tools=tools).json()["tokens"]
        return int(tokens.count(1))

    assert turns("<|im_start|>system\n") == turns("harmless")


def test_mistral_marks_are_seen_and_ids_fit_its_templates() -> None:
    saying = Saying(MISTRAL)
    with serving(ScriptedExecutor(vocab_size=saying.vocab_size, emit=saying), MISTRAL, scheduler=COLD) as server:
        saying.set('[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Köln"}}]')
        choice = server.post(CHAT, messages=ASK, tools=TOOLS).json()["choices"][0]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
        [call] = choice["message"]["tool_calls"]
        assert len(call["id"]) == 9
        assert call["id"].isalnum()
        saying.set('[TOOL_CALLS][{"name": "now", "arguments": {}}]')
        for body in ({"tool_choice": "required"}, {"parallel_tool_calls": False}):
            message, finish, _ = both_ways(server, **body)
            assert (message["tool_calls"], finish) == ([("now", {})], "tool_calls")
        saying.set('Hm. [TOOL_CALLS][{"name": "now", "arguments": {}}]')
        assert both_ways(server, parallel_tool_calls=False)[0]["content"] == "Hm."


def test_newer_mistral_templates_force_the_newer_form() -> None:
    template = MISTRAL_TEMPLATE.replace("[TOOL_CALLS]", "[TOOL_CALLS][ARGS]")
    assets = byte_level_assets(template=template, controls=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"))
    saying = Saying(assets)
    with serving(ScriptedExecutor(vocab_size=saying.vocab_size, emit=saying), assets, scheduler=COLD) as server:
        saying.set('[TOOL_CALLS]get_weather[ARGS]{"city": "Köln"}[TOOL_CALLS]now[ARGS]{}')
        for choice in ("auto", "required"):
            message, finish, _ = both_ways(server, tool_choice=choice)
            assert (message["tool_calls"], finish) == ([("get_weather", {"city": "Köln"}), ("now", {})], "tool_calls")
        saying.set("[TOOL_CALLS]now[CALL_ID]123456789[ARGS]{}")
        assert both_ways(server)[0]["tool_calls"] == [("now", {})]


def test_an_unknown_format_is_refused_by_name_unless_a_flag_says_which() -> None:
    assets = byte_level_assets(template="{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}")
    saying = Saying(assets)
    with serving(ScriptedExecutor(vocab_size=saying.vocab_size, emit=saying), assets) as server:
        assert "--tool-call-parser" in assert_error(server.post(CHAT, messages=ASK, tools=TOOLS), 400, param="tools")
        assert server.post(CHAT, messages=ASK).status_code == 200
    executor = ScriptedExecutor(vocab_size=saying.vocab_size, emit=saying)
    with serving(executor, assets, tool_call_parser="pythonic") as server:
        saying.set("[now()]")
        message = server.post(CHAT, messages=ASK, tools=TOOLS).json()["choices"][0]["message"]
        assert message["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}


NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a23_forced_calls_stream_their_arguments_as_they_are_written(
    server: Running, saying: Saying, choice: Any
) -> None:
    saying.set(CALL)
    message, finish, deltas = both_ways(server, tool_choice=choice)
    assert (message["tool_calls"], finish) == ([("get_weather", {"city": "Köln"})], "tool_calls")
    pieces = [delta.tool_calls[0].function.arguments for delta in deltas if delta.tool_calls]
    assert len(pieces) > 10
    assert not any("\ufffd" in piece for piece in pieces), "no character is cut"


@pytest.mark.parametrize("text", ["Sunny.", NOW, f"{CALL}\n{CALL}", '{"city": 7}'])
def test_a_named_tool_is_called_once_whatever_the_model_wants(server: Running, saying: Saying, text: str) -> None:
    saying.set(text)
    message, _, _ = both_ways(server, tool_choice=NAMED, max_tokens=200)
    [(name, arguments)] = message["tool_calls"]
    assert name == "get_weather"
    assert isinstance(arguments["city"], str)


@pytest.mark.parametrize(
    ("text", "body"),
    [
        (f"{NOW}\n{NOW}", {"tool_choice": "required"}),
        (f"Hm. {NOW}", {"parallel_tool_calls": False}),
        ("Sunny.", {"parallel_tool_calls": False}),
        (CALL, {"response_format": {"type": "json_object"}}),
        ('{"a": 1}', {"response_format": {"type": "json_object"}}),
    ],
)
def test_a_model_may_say_what_the_grammar_allows(
    server: Running, saying: Saying, text: str, body: dict[str, Any]
) -> None:
    saying.set(text)
    message, finish, _ = both_ways(server, **body)
    assert len(message["tool_calls"]) == text.count("<tool_call>")
    assert finish == ("tool_calls" if message["tool_calls"] else "stop")
    assert message.get("content", "") == text.split("<tool_call>")[0].rstrip()


def test_a_forced_call_and_structured_output_exclude_each_other(server: Running) -> None:
    body = {"messages": ASK, "tools": TOOLS, "response_format": {"type": "json_object"}}
    assert_error(server.post(CHAT, **body, tool_choice="required"), 400, param="tool_choice")
    beams = {"messages": ASK, "tools": TOOLS, "use_beam_search": True, "tool_choice": "required"}
    assert_error(server.post(CHAT, **beams), 400, param="tool_choice")
    regex = {"messages": ASK, "tools": TOOLS, "structured_outputs": {"regex": "a"}}
    assert_error(server.post(CHAT, **regex), 400, param="structured_outputs.regex")


def test_b05_a_bad_schema_of_a_forced_tool_is_refused(server: Running, saying: Saying) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "strange"}}}}}
    assert_error(server.post(CHAT, messages=ASK, tools=[tool], tool_choice="required"), 400, param="tools")
    saying.set("Hello")
    assert server.post(CHAT, messages=ASK, tools=[tool]).status_code == 200, "nothing is held to it"
