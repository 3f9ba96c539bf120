"""Structured output over HTTP: both endpoints, both names for it, and what is refused."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from harness import MODEL, Running, assert_error, serving, wait_until

from legato import LLM, SamplingParams, StructuredOutputsParams
from legato.core.config import EngineConfig, SchedulerConfig
from legato.core.errors import RequestError
from legato.engine.assemble import assemble
from support.byte_level import ASSETS, EOS, VOCAB, byte_tokens
from support.scripted import ScriptedExecutor

TALK: Any = [{"role": "user", "content": "hi"}]
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
SPACE, LETTER = byte_tokens(" a")


def always(token: int) -> ScriptedExecutor:
    """A model that wants the same token always, or what comes next in the vocabulary where that is not allowed."""
    return ScriptedExecutor(vocab_size=VOCAB, emit=lambda history, params, seen: token)


@pytest.fixture(scope="module")
def letters() -> Iterator[Running]:
    with serving(always(LETTER)) as server:
        yield server


def complete(server: Running, **body: Any) -> dict[str, Any]:
    return server.complete("hi", **{"max_tokens": 200, **body})["choices"][0]


def test_response_format_with_the_official_client(letters: Running) -> None:
    schema: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    [choice] = letters.api.chat.completions.create(model=MODEL, messages=TALK, response_format=schema).choices
    assert choice.finish_reason == "stop"
    assert json.loads(choice.message.content or "") == {"name": "aaaaaaaa", "age": 0}
    anything: Any = {"type": "json_object"}
    [choice] = letters.api.chat.completions.create(model=MODEL, messages=TALK, response_format=anything).choices
    assert (choice.message.content, choice.finish_reason) == ("{}", "stop")


@pytest.mark.parametrize(
    ("structured", "text", "finish"),
    [
        ({"json": PERSON, "disable_any_whitespace": True}, '{"name":"aaaaaaaa","age":0}', "stop"),
        ({"json": json.dumps(PERSON), "whitespace_pattern": "_"}, '{"name":"aaaaaaaa","age":0}', "stop"),
        ({"regex": "b{2}[a-c]"}, "bba", "stop"),
        ({"choice": ["Paris", "London"]}, "London", "stop"),
        ({"grammar": 'root ::= ("b" | "c") "d"'}, "bd", "stop"),
        ({"grammar": 'start: "x" /[a-c]{2}/'}, "xaa", "stop"),
        ({"regex": "a*"}, "a" * 200, "length"),
    ],
)
def test_structured_outputs(letters: Running, structured: dict[str, Any], text: str, finish: str) -> None:
    whole = complete(letters, structured_outputs=structured)
    assert (whole["text"], whole["finish_reason"], whole["stop_reason"]) == (text, finish, None)
    streamed = letters.stream("/v1/completions", prompt="hi", max_tokens=200, structured_outputs=structured)
    assert (streamed.choices()[0]["text"], streamed.choices()[0]["finish_reason"]) == (text, finish)


@pytest.mark.parametrize("wanted", [SPACE, *byte_tokens("\n\t")])
def test_b01_a_model_that_wants_white_space_gets_to_the_end(wanted: int) -> None:
    """B01: the object closes, with "stop"."""
    with serving(always(wanted)) as server:
        choice = complete(server, structured_outputs={"json": PERSON}, max_tokens=200)
        assert choice["finish_reason"] == "stop"
        assert set(json.loads(choice["text"])) == {"name", "age"}


def test_choices_stop_strings_and_limits(letters: Running) -> None:
    many = letters.complete("hi", n=3, temperature=1.0, max_tokens=200, structured_outputs={"json": PERSON})["choices"]
    assert [json.loads(choice["text"]) for choice in many] == [{"name": "aaaaaaaa", "age": 0}] * 3
    stopped = complete(letters, structured_outputs={"json": PERSON, "disable_any_whitespace": True}, stop=['","'])
    assert (stopped["text"], stopped["finish_reason"]) == ('{"name":"aaaaaaaa', "stop")
    assert stopped["stop_reason"] == '","'
    last = complete(letters, structured_outputs={"regex": "b{2}a"}, stop=["a"])
    assert (last["text"], last["finish_reason"]) == ("bb", "stop")
    assert complete(letters, structured_outputs={"regex": "ba"}, min_tokens=9)["text"] == "ba"
    assert complete(letters, structured_outputs={"regex": "ba"}, ignore_eos=True)["finish_reason"] == "stop"


def test_a11_log_probabilities_of_guided_tokens_are_json(letters: Running) -> None:
    """A11: where one token is all that fits, the others are among the alternatives all the same."""
    choice = complete(letters, structured_outputs={"regex": "ba"}, logprobs=5)
    assert choice["logprobs"]["tokens"] == ["b", "a"]
    assert all(len(top) >= 5 for top in choice["logprobs"]["top_logprobs"])


def test_a_grammar_that_breaks_in_the_answer_is_the_requests_fault() -> None:
    with serving(always(-1)) as server:
        for stream in (False, True):
            answer = server.post("/v1/completions", prompt="hi", structured_outputs={"regex": "ba"}, stream=stream)
            assert "grammar allows none" in assert_error(answer, 400, param="structured_outputs.regex")


def test_the_end_token_is_chosen_where_the_answer_may_end() -> None:
    with serving(always(EOS)) as server:
        choice = complete(server, structured_outputs={"regex": "[b-z]{2,9}"})
        assert (choice["text"], choice["finish_reason"]) == ("bb", "stop")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": {"type": "structural_tag"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "text", "json_schema": {"schema": {}}}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": 3}}, "structured_outputs.regex"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": {"type": "frob"}}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "(" * 5000}}, "structured_outputs.regex"),
    ],
)
@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completion"])
def test_b05_bad_ones_are_400_and_name_the_field(letters: Running, body: Any, param: str, chat: bool) -> None:
    """B05, and A20 for response_format."""
    path, prompt = ("/v1/chat/completions", {"messages": TALK}) if chat else ("/v1/completions", {"prompt": "hi"})
    for stream in (False, True):
        assert_error(letters.post(path, stream=stream, **prompt, **body), 400, param=param)
    assert complete(letters, structured_outputs={"regex": "ba"})["text"] == "ba"


def test_null_and_text_ask_for_nothing(letters: Running) -> None:
    for body in ({"response_format": None}, {"response_format": {"type": "text"}}, {"structured_outputs": None}):
        assert complete(letters, max_tokens=2, **body)["text"] == "aa"
    assert complete(letters, structured_outputs={"regex": "ba", "json": None, "disable_any_whitespace": None})


def test_b06_others_go_on_while_a_grammar_is_compiled() -> None:
    """B06: a body that takes long to compile delays neither /health nor another request; its time is bounded."""
    slow = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1000)}}
    with serving(always(LETTER)) as server, ThreadPoolExecutor(1) as elsewhere:
        body = {"prompt": "hi", "max_tokens": 1, "structured_outputs": {"json": slow}}
        answer = elsewhere.submit(httpx.post, f"{server.url}/v1/completions", json=body, timeout=60)
        wait_until(lambda: bool(server.engine.grammars._results))
        assert server.http.get("/health").status_code == 200
        assert complete(server, max_tokens=2)["text"] == "aa"
        assert_error(answer.result(), 400, param="structured_outputs.json")
        server.wait_drained()


def offline(executor: ScriptedExecutor) -> LLM:
    return LLM.over(assemble(executor, ASSETS, EngineConfig(scheduler=SchedulerConfig()), MODEL))


def test_offline_in_vllms_call_shape() -> None:
    with offline(always(LETTER)) as llm:
        params = SamplingParams(max_tokens=200, structured_outputs=StructuredOutputsParams(json=PERSON))
        [one, two] = llm.generate(["x", "y"], params, use_tqdm=False)
        assert json.loads(one.outputs[0].text) == json.loads(two.outputs[0].text) == {"name": "aaaaaaaa", "age": 0}
        with pytest.raises(RequestError, match="Invalid type"):
            llm.generate("x", SamplingParams(structured_outputs=StructuredOutputsParams(json={"type": "frob"})))
        grammar = StructuredOutputsParams(regex="a").to_grammar()
        with pytest.raises(RequestError, match="two names"):
            llm.generate("x", SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"), grammar=grammar))
        assert llm.generate("x", SamplingParams(grammar=grammar), use_tqdm=False)[0].outputs[0].text == "a"


def test_a_start_without_grammars_loads_nothing_for_them() -> None:
    with offline(always(LETTER)) as llm:
        llm.generate("x", SamplingParams(max_tokens=1), use_tqdm=False)
        assert llm._engine.grammars._compiler._tokenizer is None
        assert llm._engine.grammars._compiler._trial._child is None
