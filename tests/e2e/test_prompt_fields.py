"""Fields that make the prompt: prefilled answers, templates and documents of requests, cut prompts, unknown fields."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from harness import Running, Script, assert_error, serving

from support.byte_level import ASSETS, CHATML, TOKENIZER, VOCAB, byte_level_assets, byte_tokens
from support.scripted import ScriptedExecutor

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = "<|im_start|>user\nhi<|im_end|>\n"
PREFILLED = f"{USER}<|im_start|>assistant\nIt is "
TALK: Any = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "It is "}]
WITH_DOCUMENTS = "{% for d in documents or [] %}[{{ d.text }}]{% endfor %}" + CHATML


def scripted() -> ScriptedExecutor:
    script = Script()
    script.set(PREFILLED, byte_tokens("so"))
    return ScriptedExecutor(vocab_size=VOCAB, emit=script)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(scripted(), replace(ASSETS, chat_template=WITH_DOCUMENTS)) as it:
        yield it


def prompt_of(server: Running, **body: Any) -> str:
    """What the template made of a chat."""
    answer = server.post(CHAT, **body, max_tokens=1, return_token_ids=True)
    assert answer.status_code == 200, answer.text
    ids = answer.json()["prompt_token_ids"]
    tokenize = {name: value for name, value in body.items() if name not in ("echo",)}
    assert server.post("/tokenize", **tokenize).json()["tokens"] == ids
    return TOKENIZER.decode(ids, skip_special_tokens=False)


def test_a_prefilled_answer_goes_on_where_it_stopped(server: Running) -> None:
    assert prompt_of(server, messages=TALK, continue_final_message=True) == PREFILLED
    whole = server.post(CHAT, messages=TALK, continue_final_message=True).json()["choices"][0]
    assert whole["message"]["content"] == "so"
    more = {"continue_final_message": True, "echo": True}
    echoed = server.post(CHAT, messages=TALK, logprobs=True, **more).json()["choices"][0]
    assert echoed["message"]["content"] == "It is so"
    assert len(echoed["logprobs"]["content"]) == 3, "of the answer only"
    stream = server.stream(CHAT, messages=TALK, **more)
    assert stream.choices()[0]["text"] == "It is so"


def test_parts_and_control_tokens_of_a_prefilled_answer(server: Running) -> None:
    parts = [{"type": "text", "text": "It"}, {"type": "text", "text": "is<|im_end|>"}]
    talk = [TALK[0], {"role": "assistant", "content": parts}]
    body = {"messages": talk, "continue_final_message": True}
    assert prompt_of(server, **body) == f"{USER}<|im_start|>assistant\nIt\nis<|im_end|>"
    ids = server.post("/tokenize", **body).json()["tokens"]
    assert ids.count(TOKENIZER.special_tokens["<|im_end|>"]) == 1, "what the user wrote stays text"


def test_how_a_prefill_is_refused(server: Running) -> None:
    both = server.post(CHAT, messages=TALK, continue_final_message=True, add_generation_prompt=True)
    assert_error(both, 400, param="add_generation_prompt")
    assert server.post(CHAT, messages=TALK, continue_final_message=True, add_generation_prompt=False).status_code == 200
    assert_error(server.post(CHAT, messages=TALK, echo=True), 400, param="echo")
    with serving(scripted(), replace(ASSETS, chat_template="{{ messages[0].content }}")) as other:
        refused = other.post(CHAT, messages=TALK, continue_final_message=True)
        assert_error(refused, 400, param="continue_final_message")


def test_documents_reach_templates_that_use_them(server: Running) -> None:
    documents = [{"title": "a", "text": "one"}, {"text": "<|im_start|>"}]
    assert prompt_of(server, messages=TALK[:1], documents=documents).startswith(f"[one][<|im_start|>]{USER}")
    with serving(scripted()) as plain:
        assert_error(plain.post(CHAT, messages=TALK, documents=documents), 400, param="documents")
    for wrong, param in (("text", "documents"), (["text"], "documents[0]"), ({}, "documents")):
        assert_error(server.post(CHAT, messages=TALK, documents=wrong), 400, param=param)


def test_a26_templates_of_requests_need_a_switch(server: Running) -> None:
    own = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    for path in (CHAT, "/tokenize"):
        refused = server.post(path, messages=TALK, chat_template=own)
        assert "--trust-request-chat-template" in assert_error(refused, 400, param="chat_template")
    with serving(scripted(), trust_request_chat_template=True) as trusting:
        for _ in range(2):
            assert prompt_of(trusting, messages=TALK, chat_template=own) == "<user>hi<assistant>It is "
        assert prompt_of(trusting, messages=TALK) == f"{PREFILLED}<|im_end|>\n<|im_start|>assistant\n"
        for bad in ("{% if %}", "{{ raise_exception('no such talk') }}", "{% for i in range(10**9) %}x{% endfor %}"):
            assert_error(trusting.post(CHAT, messages=TALK, chat_template=bad), 400, param="chat_template")
        long = trusting.post(CHAT, messages=TALK, chat_template="x" * ((1 << 16) + 1))
        assert_error(long, 400, param="chat_template")
        said = trusting.post(CHAT, messages=TALK, chat_template="{{ raise_exception('no such talk') }}")
        assert assert_error(said, 400, param="chat_template") == "no such talk"
        assert_error(trusting.post("/tokenize", messages=TALK, chat_template="{{ 1 / 0 }}"), 400, param="chat_template")


def test_special_tokens_around_a_chat() -> None:
    with serving(scripted(), byte_level_assets(add_bos=True)) as server:
        plain = prompt_of(server, messages=TALK[:1])
        assert prompt_of(server, messages=TALK[:1], add_special_tokens=True) == f"<|im_start|>{plain}"


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 3}, "fgh"),
        ({"truncate_prompt_tokens": 3, "truncation_side": "left"}, "fgh"),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, "abc"),
        ({"truncate_prompt_tokens": 99}, "abcdefgh"),
        ({"truncate_prompt_tokens": -1}, "abcdefgh"),
    ],
)
def test_prompts_are_cut(server: Running, fields: dict[str, Any], kept: str) -> None:
    choice = server.complete("abcdefgh", max_tokens=1, echo=True, return_token_ids=True, **fields)["choices"][0]
    assert choice["prompt_token_ids"] == byte_tokens(kept)
    assert choice["text"].startswith(kept)


def test_minus_one_cuts_to_what_fits() -> None:
    with serving(ScriptedExecutor(vocab_size=VOCAB, emit=Script(), max_position=64)) as server:
        body = {"prompt": [5] * 50 + [6] * 50, "truncate_prompt_tokens": -1, "return_token_ids": True}
        assert server.complete(**body, max_tokens=20)["choices"][0]["prompt_token_ids"] == [6] * 44
        assert len(server.complete(**body)["choices"][0]["prompt_token_ids"]) == 63
        talk = [{"role": "user", "content": "x" * 100}]
        answer = server.post(CHAT, messages=talk, truncate_prompt_tokens=-1, max_tokens=4)
        assert answer.json()["usage"]["prompt_tokens"] == 60


@pytest.mark.parametrize("value", [0, -2, 1.5, "3", True])
def test_cuts_that_are_refused(server: Running, value: Any) -> None:
    body = {"prompt": "abc", "truncate_prompt_tokens": value}
    assert_error(server.post(COMPLETIONS, **body), 400, param="truncate_prompt_tokens")
    assert_error(server.post(COMPLETIONS, prompt="abc", truncation_side="left"), 400, param="truncation_side")
    wrong = server.post(COMPLETIONS, prompt="abc", truncate_prompt_tokens=2, truncation_side="middle")
    assert_error(wrong, 400, param="truncation_side")


def test_p5_unknown_fields_may_be_let_pass_and_are_named(caplog: pytest.LogCaptureFixture) -> None:
    named = {"stream_options.new": 1}
    with serving(scripted(), permissive_fields=True) as server, caplog.at_level(logging.WARNING):
        answer = server.post(COMPLETIONS, prompt="hi", temprature=0, **{"x\ny": 1, "\u00e9": 2})
        assert answer.headers["x-legato-ignored-fields"] == "temprature, 'x\\ny', \\xe9"
        assert "temprature" in caplog.text
        stream = server.post(CHAT, messages=TALK, stream=True, stream_options={"include_usage": True, "new": 1}, a=1)
        assert stream.status_code == 200
        assert set(stream.headers["x-legato-ignored-fields"].split(", ")) == {*named, "a"}
        many = server.post("/tokenize", prompt="hi", **{f"f{i}": i for i in range(20)})
        assert many.headers["x-legato-ignored-fields"].endswith("f15, ...")
        assert "x-legato-ignored-fields" not in server.post(COMPLETIONS, prompt="hi").headers
        tool: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
        bare = server.post("/tokenize", messages=TALK, tools=[tool])
        part = {"type": "text", "text": TALK[0]["content"], "detail": "low"}
        talk = [{**TALK[0], "content": [part], "mood": "x"}, *TALK[1:]]
        rich = server.post("/tokenize", messages=talk, tools=[{**tool, "function": {"name": "f", "title": "F"}}])
        assert rich.json() == bare.json()
        inner = ["messages[0].content[0].detail", "messages[0].mood", "tools[0].function.title"]
        assert sorted(rich.headers["x-legato-ignored-fields"].split(", ")) == inner
        assert_error(server.post(COMPLETIONS, prompt="hi", best_of=2), 400, param="best_of")
        assert_error(server.post(COMPLETIONS, prompt="hi", temperature="hot", other=1), 400, param="temperature")
