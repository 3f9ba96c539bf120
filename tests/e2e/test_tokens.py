"""/tokenize, /detokenize and /load: the same tokens as a completion or a chat, and the requests that are open."""

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from harness import MODEL, Running, Script, assert_error, serving, wait_until

from support.byte_level import TOKENIZER, VOCAB, byte_tokens
from support.scripted import ScriptedExecutor

TALK = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello ❤ <|im_end|>"}]


@pytest.fixture(scope="module")
def executor() -> ScriptedExecutor:
    script = Script()
    script.set("hi", byte_tokens("fine"))
    return ScriptedExecutor(vocab_size=VOCAB, emit=script)


@pytest.fixture(scope="module")
def server(executor: ScriptedExecutor) -> Iterator[Running]:
    with serving(executor) as it:
        yield it


def tokenize(server: Running, **body: Any) -> dict[str, Any]:
    response = server.post("/tokenize", **body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert set(answer) == {"count", "max_model_len", "tokens", "token_strs"}
    assert answer["count"] == len(answer["tokens"])
    return answer


@pytest.mark.parametrize("text", ["hello", "é❤ x", "<|im_start|>user\nhi<|im_end|>", "a" * 20_000])
def test_a_prompt_there_and_back(server: Running, text: str) -> None:
    answer = tokenize(server, prompt=text, model=MODEL)
    assert answer["tokens"] == TOKENIZER.encode(text, parse_special=True)
    assert answer["max_model_len"] == server.engine.inputs.max_model_len
    assert answer["token_strs"] is None
    assert server.post("/detokenize", tokens=answer["tokens"]).json() == {"prompt": text}


def test_the_tokens_are_those_of_a_completion_and_of_a_chat(server: Running, executor: ScriptedExecutor) -> None:
    salts = map(str, itertools.count())  # so that each prompt is computed whole

    def seen(path: str, **body: Any) -> list[int]:
        executor.plans.clear()
        assert server.post(path, max_tokens=1, cache_salt=next(salts), **body).status_code == 200
        return list(executor.plans[0].tokens)

    prompt = "hello <|im_end|>"
    assert seen("/v1/completions", prompt=prompt) == tokenize(server, prompt=prompt)["tokens"]
    assert seen("/v1/chat/completions", messages=TALK) == tokenize(server, messages=TALK)["tokens"]
    without = tokenize(server, messages=TALK, add_generation_prompt=False, add_special_tokens=False)
    assert seen("/v1/chat/completions", messages=TALK, add_generation_prompt=False) == without["tokens"]


def test_token_strs_show_text_not_the_byte_alphabet(server: Running) -> None:
    strs = tokenize(server, prompt="hello é<|im_end|>", return_token_strs=True)["token_strs"]
    assert strs == ["hello", " ", "\ufffd", "\ufffd", "<|im_end|>"]


def test_nothing_gives_nothing(server: Running) -> None:
    assert tokenize(server, prompt="", return_token_strs=True)["tokens"] == []
    assert server.post("/detokenize", tokens=[]).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": TALK}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "detail": "low"}]}]},
            "messages[0].content[0].detail",
        ),
        ("/tokenize", {"messages": TALK, "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ("/tokenize", {"prompt": "a", "chat_template_kwargs": {"x": 1}}, "chat_template_kwargs"),
        ("/tokenize", {"messages": TALK, "tools": [{}]}, "tools[0].type"),
        ("/tokenize", {"prompt": "a", "tools": [{}]}, "tools"),
        ("/tokenize", {"prompt": "a", "return_token_strs": 1}, "return_token_strs"),
        ("/tokenize", {"prompt": "a", "colour": 1}, "colour"),
        ("/tokenize", {"prompt": "a", "model": 1}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [VOCAB]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [2**63 - 1]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1], "prompt": "a"}, "prompt"),
    ],
)
def test_what_is_refused(server: Running, path: str, body: dict[str, Any], param: str) -> None:
    assert_error(server.post(path, **body), 400, param=param)


def test_other_models_are_not_found(server: Running) -> None:
    assert_error(server.post("/tokenize", prompt="a", model="gpt-9"), 404, code="model_not_found")
    assert_error(server.post("/detokenize", tokens=[5], model="gpt-9"), 404, code="model_not_found")


def test_load_counts_open_requests(server: Running, executor: ScriptedExecutor) -> None:
    def load() -> int:
        found: int = server.http.get("/load").json()["server_load"]
        return found

    assert load() == 0
    executor.gate.clear()
    caller = threading.Thread(target=server.complete, args=(["hi", "hi", "hi"],))
    caller.start()
    try:
        wait_until(lambda: load() == 3)
    finally:
        executor.gate.set()
        caller.join()
    assert load() == 0
