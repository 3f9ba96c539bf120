"""Clients as their users write them, against a server of the default model: openai, langchain-openai, instructor, curl.

`python tests/contract/check_clients.py URL` runs where the clients are installed (tests/contract/run.py makes such an
environment). There is a line for each check; the exit status is 0 if all passed.
"""

import json
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any, Literal

import instructor
import openai
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

QUESTION = "What is the capital of Japan?"


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)
    mood: Literal["happy", "sad"]


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def openai_client(url: str) -> None:
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    model, talk = model_of(url), [{"role": "user", "content": QUESTION}]
    asked: Any = {"model": model, "messages": talk, "temperature": 0, "max_tokens": 20}
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    assert "Tokyo" in (whole.choices[0].message.content or "")
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
    *chunks, last = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert (last.choices, last.usage.completion_tokens) == ([], whole.usage.completion_tokens)
    parsed = client.chat.completions.parse(
        model=model,
        messages=[{"role": "user", "content": "Ada is 36 and happy."}],
        response_format=Person,
        temperature=0,
        max_tokens=200,
    )
    assert isinstance(parsed.choices[0].message.parsed, Person)
    texts = client.completions.create(model=model, prompt=["One, two,", "Red, green,"], max_tokens=4, n=2, seed=1)
    assert [choice.index for choice in texts.choices] == [0, 1, 2, 3]
    for wrong, param in (({"temperature": 9}, "temperature"), ({"messages": [{"role": "x"}]}, "messages[0].role")):
        assert refused_param(client, {**asked, **wrong}) == param


def refused_param(client: openai.OpenAI, body: Any) -> str | None:
    """The field that a chat is refused for."""
    try:
        client.chat.completions.create(**body)
    except openai.BadRequestError as error:
        return error.param
    return None


def langchain_chat(url: str) -> None:
    chat = ChatOpenAI(base_url=url, api_key="none", model=model_of(url), temperature=0, max_tokens=40, max_retries=0)
    whole = chat.invoke(QUESTION)
    assert "Tokyo" in whole.content
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["input_tokens"] > 10
    chunks = list(chat.stream(QUESTION, stream_usage=True))
    assert "".join(chunk.content for chunk in chunks) == whole.content
    [usage] = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert usage["total_tokens"] == whole.usage_metadata["total_tokens"]
    assert [len(answer.content) > 0 for answer in chat.batch([QUESTION, "Say hello."])] == [True, True]
    assert "." not in chat.invoke(QUESTION, stop=["."]).content
    scored = chat.bind(logprobs=True, top_logprobs=2).invoke("Say hello.")
    assert len(scored.response_metadata["logprobs"]["content"][0]["top_logprobs"]) == 2


def langchain_structured(url: str) -> None:
    chat = ChatOpenAI(base_url=url, api_key="none", model=model_of(url), temperature=0, max_tokens=200, max_retries=0)
    for method in ("json_schema", "function_calling"):
        person = chat.with_structured_output(Person, method=method).invoke("Ada is 36 and happy.")
        assert isinstance(person, Person), method


def langchain_tools(url: str) -> None:
    chat = ChatOpenAI(base_url=url, api_key="none", model=model_of(url), temperature=0, max_tokens=100, max_retries=0)
    asked = chat.bind_tools([weather], tool_choice="weather").invoke("How is the weather in Rome?")
    [call] = asked.tool_calls
    assert call["name"] == "weather"
    assert set(call["args"]) == {"city"}
    result = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
    talk = [HumanMessage("How is the weather in Rome?"), asked, result]
    assert isinstance(chat.bind_tools([weather], tool_choice="none").invoke(talk), AIMessage)
    one = chat.bind_tools([weather], tool_choice="required", parallel_tool_calls=False)
    pieces = list(one.stream("How is the weather in Rome?"))
    total = pieces[0]
    for piece in pieces[1:]:
        total += piece
    assert [call["name"] for call in total.tool_calls] == ["weather"]
    assert total.response_metadata["finish_reason"] == "tool_calls"


def langchain_completions(url: str) -> None:
    llm = OpenAI(base_url=url, api_key="none", model=model_of(url), temperature=0, max_tokens=8, max_retries=0)
    assert "".join(llm.stream("The capital of France is")) == llm.invoke("The capital of France is")


def instructor_models(url: str) -> None:
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    talk: Any = [{"role": "user", "content": "Ada is 36 and happy."}]
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        patched = instructor.from_openai(client, mode=mode)
        person = patched.chat.completions.create(
            model=model_of(url), messages=talk, response_model=Person, max_tokens=200, temperature=0, max_retries=0
        )
        assert isinstance(person, Person), mode


def curl(url: str) -> None:
    def ask(path: str, body: Any, *flags: str) -> str:
        data = body if isinstance(body, str) else json.dumps(body)
        command = ["curl", "-sS", "--fail-with-body", *flags, f"{url}{path}", "-H", "content-type: application/json"]
        return subprocess.run([*command, "-d", data], capture_output=True, text=True, timeout=120, check=False).stdout

    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 20}
    text = json.loads(ask("/chat/completions", body))["choices"][0]["message"]["content"]
    assert "Tokyo" in text
    lines = [line for line in ask("/chat/completions", {**body, "stream": True}, "-N").splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == text
    assert json.loads(ask("/completions", "{not json"))["error"]["code"] == "invalid_json"


def model_of(url: str) -> str:
    return openai.OpenAI(base_url=url, api_key="none").models.list().data[0].id


CHECKS: tuple[Callable[[str], None], ...] = (
    openai_client,
    langchain_chat,
    langchain_structured,
    langchain_tools,
    langchain_completions,
    instructor_models,
    curl,
)


def main() -> int:
    url, failed = sys.argv[1], False
    for check in CHECKS:
        try:
            check(url)
            said = "ok"
        except Exception:  # noqa: BLE001 - whatever it is, it is shown, and the others are tried
            traceback.print_exc()
            said, failed = "FAILED", True
        print(f"clients, {check.__name__.replace('_', ' ')}: {said}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
