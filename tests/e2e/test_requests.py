"""What is refused, how, and that nobody else suffers from it (oracle 6)."""

import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from harness import MODEL, Running, Script, Streamed, assert_error, running, serving, wait_until

from legato.core.config import EngineConfig, ModelConfig, SchedulerConfig, ServerConfig
from legato.engine.assemble import assemble
from legato.protocol.chat import ChatBody
from legato.protocol.completion import CompletionBody
from support.byte_level import ASSETS, VOCAB, byte_level_assets, byte_tokens
from support.scripted import ScriptedExecutor

CONTEXT = 64
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TALK: Any = [{"role": "user", "content": "hi"}]
PROBE = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def script() -> Script:
    script = Script()
    script.set("hi", byte_tokens("fine"))
    script.set(PROBE, byte_tokens("fine"))
    return script


@pytest.fixture(scope="module")
def server(script: Script) -> Iterator[Running]:
    with serving(ScriptedExecutor(vocab_size=VOCAB, emit=script, max_position=CONTEXT), max_body_bytes=100_000) as it:
        yield it


@pytest.fixture(autouse=True)
def probed(server: Running) -> Iterator[None]:
    """Oracle 6: after whatever a test sent, a good request succeeds and nothing is left behind."""
    yield
    assert server.complete("hi")["choices"][0]["text"] == "fine"
    server.wait_drained()


def raw(server: Running, path: str, data: bytes, kind: str | None = "application/json") -> httpx.Response:
    return server.http.post(path, content=data, headers={"content-type": kind} if kind else {})


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"prompt": "a", "messages"',
        b"[]",
        b"null",
        b'"x"',
        b"3",
        b"[" * 100_000,
        b'{"a":' * 10_000,
        b'{"prompt": "\\ud800", "messages": [{"role": "user", "content": "\\udfff"}]}',
        b'{"prompt": "\xff", "messages": []}',
        b'{"prompt": "a", "messages": [{"role": "user", "content": "a"}], "temperature": NaN}',
        b'{"prompt": "a", "messages": [{"role": "user", "content": "a"}], "max_tokens": ' + b"9" * 5000 + b"}",
        b'{"prompt": "a", "messages": [{"role": "user", "content": "a"}]} trailing',
    ],
)
def test_a20_broken_bodies(server: Running, path: str, data: bytes) -> None:
    assert_error(raw(server, path, data), 400)


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_a20_other_content_types(server: Running, kind: str | None) -> None:
    message = assert_error(raw(server, COMPLETIONS, b'{"prompt": "hi"}', kind), 415)
    assert (kind or "there is none") in message


def test_a20_compressed_bodies_are_refused_by_name(server: Running) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    data = gzip.compress(b'{"prompt": "hi"}')
    assert "gzip" in assert_error(server.http.post(COMPLETIONS, content=data, headers=headers), 415)
    plain = server.http.post(COMPLETIONS, json={"prompt": "hi"}, headers={"content-encoding": "identity"})
    assert plain.status_code == 200


def test_a_charset_does_no_harm(server: Running) -> None:
    assert raw(server, COMPLETIONS, b'{"prompt": "hi"}', "Application/JSON; charset=utf-8").status_code == 200


def test_a_body_beyond_the_limit(server: Running) -> None:
    assert_error(raw(server, COMPLETIONS, b'{"prompt": "' + b"a" * 200_000 + b'"}'), 413)

    def chunks() -> Iterator[bytes]:
        yield from [b"a" * 60_000] * 2

    unsized = server.http.post(COMPLETIONS, content=chunks(), headers={"content-type": "application/json"})
    assert_error(unsized, 413)


WRONG: list[tuple[str, Any]] = [
    ("temperature", "0.5"), ("temperature", True), ("temperature", -0.1), ("temperature", 2.1), ("temperature", 1e400),
    ("top_p", 0), ("top_p", 1.5), ("top_p", [1]), ("top_k", 1.5), ("top_k", -2), ("top_k", True), ("min_p", 2),
    ("n", 0), ("n", True), ("n", 10**9), ("seed", 2**63), ("seed", 1.0), ("seed", "1"), ("max_tokens", 0),
    ("max_tokens", -1), ("max_tokens", 1.0), ("max_tokens", True), ("min_tokens", -1), ("stop", ""), ("stop", [""]),
    ("stop", ["a"] * 5), ("stop", [1]), ("stop", {"a": 1}), ("stop_token_ids", [-1]), ("stop_token_ids", [10**9]),
    ("logit_bias", {str(VOCAB): 1}), ("logit_bias", {"-1": 1}), ("logit_bias", {"05": 1}), ("logit_bias", {"x": 1}),
    ("logit_bias", {"5": "1"}), ("logit_bias", {"5": True}), ("logit_bias", {"5": 1e400}), ("logit_bias", [5]),
    ("logit_bias", {"5": None}), ("logit_bias", {"9" * 5000: 1}), ("allowed_token_ids", []),
    ("allowed_token_ids", [VOCAB]), ("allowed_token_ids", [-1]), ("allowed_token_ids", ["5"]),
    ("stop_token_ids", [True]), ("stream", 1), ("stream", "true"), ("ignore_eos", 1), ("presence_penalty", 3),
    ("frequency_penalty", -3), ("repetition_penalty", 0), ("model", 3), ("user", 3), ("metadata", [1]),
    ("stream_options", []), ("stream_options", {"include_usage": 1}), ("store", True), ("service_tier", "priority"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), WRONG, ids=[f"{f}-{str(v)[:12]}" for f, v in WRONG])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a20_d16_wrong_types_and_ranges_name_the_field(server: Running, path: str, field: str, value: Any) -> None:
    data = json.dumps({"prompt": "hi", field: value} if path == COMPLETIONS else {"messages": TALK, field: value})
    data = data.replace("Infinity", "1e400")  # what a client can write: no literal, but too large
    answer = raw(server, path, data.encode())
    message, param = assert_error(answer, 400), answer.json()["error"]["param"]
    assert param == field or param.startswith((f"{field}[", f"{field}."))
    assert param in message


INNER: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 3}}},
     "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": 3, "schema": {}}}},
     "response_format.json_schema.name"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {}}, "response_format.type"),
    ({"structured_outputs": {"choice": ["a", 1]}}, "structured_outputs.choice[1]"),
    ({"structured_outputs": {"json": 3}}, "structured_outputs.json"),
    ({"stream_options": {"include_usage": "yes"}, "stream": True}, "stream_options.include_usage"),
    ({"cache_control": {"type": "ephemeral", "ttl": "2h"}}, "cache_control.ttl"),
    ({"stop": ["a", 3]}, "stop[1]"),
    ({"stop": 3}, "stop"),
    ({"stop_token_ids": [1, True]}, "stop_token_ids[1]"),
    ({"logit_bias": {"5": "x"}}, "logit_bias.5"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"messages": [*TALK, {"role": "x", "content": "a"}]}, "messages[1].role"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": 3}]}]},
     "messages[0].content[1].type"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": 3}]}]},
     "messages[0].tool_calls[0].function"),
    ({"documents": ["x"]}, "documents[0]"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), INNER, ids=[param for _, param in INNER])
def test_a20_what_is_wrong_inside_is_named_by_its_whole_path(
    server: Running, fields: dict[str, Any], param: str
) -> None:
    assert param in assert_error(server.post(CHAT, **{"messages": TALK, **fields}), 400, param=param)


def test_the_length_of_an_answer_goes_by_the_name_it_was_given(server: Running) -> None:
    for wrong in (0, -1, 10**6):
        for fields in ({"max_completion_tokens": wrong}, {"max_completion_tokens": wrong, "max_tokens": 3}):
            answer = server.post(CHAT, messages=TALK, **fields)
            assert "max_completion_tokens must" in assert_error(answer, 400, param="max_completion_tokens")
        assert_error(server.post(CHAT, messages=TALK, max_tokens=wrong), 400, param="max_tokens")


ASIDE = {
    "user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "safety_identifier": "s",
    "prompt_cache_key": "k", "spaces_between_special_tokens": False,
}  # fmt: skip


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_p5_fields_without_effect_are_accepted(server: Running, path: str) -> None:
    body = {"prompt": "hi"} if path == COMPLETIONS else {"messages": TALK}
    assert server.post(path, **body, **ASIDE).status_code == 200


MISSING = {
    COMPLETIONS: {
        "suffix": "x", "best_of": 2,
    },
    CHAT: {
        "functions": [{}], "modalities": ["audio"],
        "verbosity": "low",
    },
}  # fmt: skip


@pytest.mark.parametrize(("path", "field"), [(path, field) for path in MISSING for field in MISSING[path]])
def test_p5_what_is_not_built_is_refused_by_name(server: Running, path: str, field: str) -> None:
    body = {"prompt": "hi"} if path == COMPLETIONS else {"messages": TALK}
    response = server.post(path, **body, **{field: MISSING[path][field]})
    assert assert_error(response, 400, param=field, code="unsupported_parameter") == f"{field} is not supported"


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_p5_unknown_fields_are_refused_by_name(server: Running, path: str) -> None:
    body: dict[str, Any] = {"prompt": "hi"} if path == COMPLETIONS else {"messages": TALK}
    assert "temprature" in assert_error(server.post(path, **body, temprature=0), 400, code="unknown_parameter")
    options = {"include_usage": True, "include_obfuscation": False}
    response = server.post(path, **body, stream=True, stream_options=options)
    assert_error(response, 400, param="stream_options.include_obfuscation", code="unknown_parameter")
    assert_error(server.post(path, **body, **{"x" * 5000 + "\n": 1}), 400, code="unknown_parameter")


NULLS = sorted({*CompletionBody.model_fields, *ChatBody.model_fields, "functions", "suffix"} - {"prompt", "messages"})


@pytest.mark.parametrize("field", NULLS)
def test_a19_null_means_left_out(server: Running, field: str) -> None:
    modes: list[dict[str, Any]] = [{}, {"stream": True}] if field != "stream" else [{}]
    for mode in modes:
        if field in ChatBody.model_fields or field == "functions":
            assert text_of(server.post(CHAT, messages=TALK, **{field: None}, **mode)) == "fine"
        if field in CompletionBody.model_fields or field == "suffix":
            assert text_of(server.post(COMPLETIONS, prompt="hi", **{field: None}, **mode)) == "fine"


def text_of(answer: httpx.Response) -> str:
    """The text of the one choice of an answer, streamed or not."""
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"].startswith("text/event-stream"):
        text: str = Streamed(answer.text).choices()[0]["text"]
        return text
    choice = answer.json()["choices"][0]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["", [], [""], [[]], ["hi", ""]])
def test_a16_empty_prompts(server: Running, prompt: Any, stream: bool) -> None:
    assert_error(server.post(COMPLETIONS, prompt=prompt, stream=stream), 400, param="prompt", code="empty_prompt")


def test_a16_an_empty_text_with_bos_is_one_token() -> None:
    with serving(ScriptedExecutor(vocab_size=VOCAB), byte_level_assets(add_bos=True)) as server:
        for prompt in ("", [""]):
            assert server.complete(prompt, max_tokens=2, ignore_eos=True)["usage"]["prompt_tokens"] == 1
        for prompt in ([], [[]]):
            assert_error(server.post(COMPLETIONS, prompt=prompt), 400, param="prompt", code="empty_prompt")
        assert_error(server.post(COMPLETIONS, prompt="", add_special_tokens=False), 400, code="empty_prompt")


def test_a16_empty_talk_and_empty_message(server: Running) -> None:
    assert_error(server.post(CHAT, messages=[]), 400, param="messages", code="empty_prompt")
    assert server.post(CHAT, messages=[{"role": "user", "content": ""}]).status_code == 200


@pytest.mark.parametrize(
    "prompt",
    [[VOCAB], [-1], [5279552648203111001], [1.5], [True], [[1], 2], [["a"]], {"a": 1}, 7, None, ["a", 1], [[VOCAB]]],
)
def test_d13_impossible_token_ids(server: Running, prompt: Any) -> None:
    assert_error(server.post(COMPLETIONS, prompt=prompt), 400, param="prompt")


@pytest.mark.parametrize("stream", [False, True])
def test_a17_prompts_at_the_limit(server: Running, script: Script, stream: bool) -> None:
    script.set([5] * (CONTEXT - 1), byte_tokens("x"))
    for length in (CONTEXT, CONTEXT + 1):
        response = server.post(COMPLETIONS, prompt=[5] * length, stream=stream)
        message = assert_error(response, 400, param="prompt", code="context_length_exceeded")
        assert str(CONTEXT) in message
        assert str(length) in message
    fits = server.post(COMPLETIONS, prompt=[5] * (CONTEXT - 1), stream=stream)
    assert fits.status_code == 200
    choice = Streamed(fits.text).choices()[0] if stream else fits.json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("x", "length")


def test_a17_an_answer_that_cannot_fit(server: Running) -> None:
    message = assert_error(
        server.post(COMPLETIONS, prompt=[5] * 40, max_tokens=30), 400, code="context_length_exceeded"
    )
    assert all(str(number) in message for number in (CONTEXT, 40, 30))
    long = [{"role": "user", "content": "x" * 100}]
    assert_error(server.post(CHAT, messages=long), 400, param="messages", code="context_length_exceeded")


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([1], "messages[0]"),
        ([{"content": "a"}], "messages[0].role"),
        ([{"role": "king", "content": "a"}], "messages[0].role"),
        ([{"role": "tool", "content": "a"}], "messages[0].tool_call_id"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": "a", "colour": 1}], "messages[0].colour"),
        ([*TALK, {"role": "assistant", "content": "a", "tool_calls": [{}]}], "messages[1].tool_calls"),
    ],
)
def test_bad_messages_are_named(server: Running, messages: Any, where: str) -> None:
    assert where in assert_error(server.post(CHAT, messages=messages), 400)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"store": True}, "store should be false"),
        ({"logit_bias": {str(VOCAB): 1}}, f"logit_bias: token ids must be integers from 0 to {VOCAB - 1}, got {VOCAB}"),
        ({"messages": [{"role": "function"}]}, "results of functions have the role tool"),
    ],
)
def test_errors_say_what_would_be_right(server: Running, body: dict[str, Any], said: str) -> None:
    assert said in assert_error(server.post(CHAT, **{"messages": TALK, **body}), 400)


def test_a25_parts_give_the_same_prompt_as_text(server: Running, script: Script) -> None:
    def prompt_tokens(content: Any) -> int:
        answer = server.post(CHAT, messages=[{"role": "user", "content": content}])
        tokens: int = answer.json()["usage"]["prompt_tokens"]
        return tokens

    assert prompt_tokens([{"type": "text", "text": "hi"}]) == prompt_tokens("hi")
    assert prompt_tokens([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]) == prompt_tokens("a\nb")


ALTERNATE = """{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Users and assistants take turns.') }}{% endif %}{{ m.content }}{% endfor %}"""


@pytest.mark.parametrize("stream", [False, True])
def test_a26_the_templates_own_sentence_is_the_message(stream: bool) -> None:
    with serving(ScriptedExecutor(vocab_size=VOCAB), byte_level_assets(template=ALTERNATE)) as strict:
        refused = strict.post(CHAT, messages=TALK * 2, stream=stream)
        assert assert_error(refused, 400, param="messages") == "Users and assistants take turns."
        assert_error(strict.post("/tokenize", messages=TALK * 2), 400, param="messages")
        assert_error(strict.post(CHAT, messages=[{"role": "king", "content": "a"}]), 400, param="messages[0].role")
        unused = strict.post(CHAT, messages=TALK, chat_template_kwargs={"thinking": True})
        assert "'thinking'" in assert_error(unused, 400, param="chat_template_kwargs")
        assert strict.post(CHAT, messages=TALK, max_tokens=1).status_code == 200


def test_a_reply_may_be_sent_back(server: Running) -> None:
    reply = server.api.chat.completions.create(model=MODEL, messages=TALK)
    talk = [*TALK, reply.choices[0].message.model_dump(), {"role": "user", "content": "?"}]
    assert server.post(CHAT, messages=talk).status_code == 200


def test_unknown_models(server: Running) -> None:
    response = server.post(COMPLETIONS, model="gpt-9", prompt="hi")
    assert "gpt-9" in assert_error(response, 404, param="model", code="model_not_found")
    with pytest.raises(openai.NotFoundError):
        server.api.models.retrieve("gpt-9")
    assert [model.id for model in server.api.models.list()] == [MODEL]
    assert server.api.models.retrieve(MODEL).id == MODEL


def test_names_that_clients_use(script: Script) -> None:
    config = EngineConfig(model=ModelConfig(served_model_name=("one", "two")))
    engine = assemble(ScriptedExecutor(vocab_size=VOCAB, emit=script), ASSETS, config, MODEL)
    with running(engine, ServerConfig(port=0)) as server:
        assert [model.id for model in server.api.models.list()] == ["one", "two"]
        assert [server.complete("hi", **asked)["model"] for asked in ({}, {"model": "two"})] == ["one", "two"]
        assert_error(server.post(COMPLETIONS, model=MODEL, prompt="hi"), 404, code="model_not_found")


def test_paths_and_methods_that_do_not_exist(server: Running) -> None:
    assert_error(server.http.get("/v2/nothing"), 404)
    assert_error(server.post("/v1/embeddings", input="a"), 404)
    response = server.http.get(COMPLETIONS)
    assert_error(response, 405)
    assert response.headers["allow"] == "POST"


def test_a07_stream_options_without_stream(server: Running) -> None:
    assert_error(server.post(CHAT, messages=TALK, stream_options={}), 400, param="stream_options")


def test_a28_request_ids(server: Running) -> None:
    def with_id(value: str) -> httpx.Response:
        return server.http.post(COMPLETIONS, json={"prompt": "hi"}, headers={"x-request-id": value})

    first, second = with_id("mine"), with_id("mine")
    assert first.headers["x-request-id"] == second.headers["x-request-id"] == "mine"
    assert first.json()["id"] != second.json()["id"]
    assert len(with_id("a" * 10_000).headers["x-request-id"]) == 128
    assert_error(with_id("a\tb"), 400)
    assert server.http.get("/health").headers["x-request-id"]


@pytest.mark.parametrize("label", [{"headers": {"x-request-id": "mine"}}, {"body": {"request_id": "mine"}}])
def test_a28_two_at_once_with_one_id_do_not_meet(label: dict[str, Any]) -> None:
    """Both finish with their own text; one that leaves ends its own alone."""
    script = Script()
    for name in ("one", "two", "left"):
        script.set(name, byte_tokens(f"of {name}"))
    executor = ScriptedExecutor(vocab_size=VOCAB, emit=script)
    with serving(executor) as server, ThreadPoolExecutor(2) as pool:

        def ask(prompt: str, **more: Any) -> httpx.Response:
            body = {"prompt": prompt, **label.get("body", {})}
            return server.http.post(COMPLETIONS, json=body, headers=label.get("headers"), **more)

        executor.gate.clear()
        both = [pool.submit(ask, prompt) for prompt in ("one", "two")]
        wait_until(lambda: server.server.client.num_open == 2)
        with pytest.raises(httpx.ReadTimeout):
            ask("left", timeout=httpx.Timeout(20, read=0.2))
        wait_until(lambda: server.server.client.num_open == 2)
        executor.gate.set()
        answers = [each.result(20) for each in both]
        assert [text_of(answer) for answer in answers] == ["of one", "of two"]
        names = [answer.headers["x-request-id"] for answer in answers] + [answer.json()["id"] for answer in answers]
        assert names.count("mine") + names.count("cmpl-mine") == 2
        server.wait_drained()


def test_the_official_client_raises_its_own_errors(server: Running) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.api.completions.create(model=MODEL, prompt="hi", temperature=9)
    assert caught.value.param == "temperature"


def test_429_when_the_queue_is_full(script: Script) -> None:
    executor = ScriptedExecutor(vocab_size=VOCAB, emit=script)
    config = SchedulerConfig(max_num_seqs=1, max_num_queued_reqs=2)
    with serving(executor, scheduler=config) as server:
        executor.gate.clear()
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(server.complete, ["hi", "hi"])
            wait_until(lambda: server.server.client.stats().waiting == 1)
            response = server.post(COMPLETIONS, prompt=["hi"] * 2)
            assert_error(response, 429, code="queue_full")
            assert int(response.headers["retry-after"]) >= 1
            executor.gate.set()
            assert len(first.result(20)["choices"]) == 2
        assert len(server.complete(["hi", "hi"])["choices"]) == 2


def test_p3_more_choices_than_the_queue_ever_holds_are_400(script: Script) -> None:
    """No later time would do, so 429 with Retry-After would not be honest."""
    executor = ScriptedExecutor(vocab_size=VOCAB, emit=script)
    with serving(executor, scheduler=SchedulerConfig(max_num_queued_reqs=2)) as server:
        for stream in (False, True):
            response = server.post(COMPLETIONS, prompt=["hi"] * 3, stream=stream)
            assert "the queue holds 2" in assert_error(response, 400, param="prompt")
            assert_error(server.post(COMPLETIONS, prompt="hi", n=3, temperature=1, stream=stream), 400, param="n")
        server.wait_drained()


def test_429_when_too_many_prompt_tokens_wait(script: Script) -> None:
    executor = ScriptedExecutor(vocab_size=VOCAB, emit=script)
    with serving(executor, scheduler=SchedulerConfig(max_num_seqs=1, max_num_queued_tokens=8)) as server:
        executor.gate.clear()
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(server.complete, "hi")
            wait_until(lambda: server.server.client.stats().running == 1)
            second = pool.submit(server.complete, "hi")
            wait_until(lambda: server.server.client.num_open == 2)
            response = server.post(COMPLETIONS, prompt="too long")
            assert_error(response, 429, code="queue_full")
            assert int(response.headers["retry-after"]) >= 1
            executor.gate.set()
            assert [each.result(20)["choices"][0]["text"] for each in (first, second)] == ["fine", "fine"]
