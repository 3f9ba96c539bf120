"""What users bring along, unchanged: LangChain's agents and structured output, and pydantic models with `openai`."""

import enum
from collections.abc import Iterator
from typing import Annotated, Any

import pydantic
import pytest
from harness import MODEL, Running, serving
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from support.byte_level import byte_level_assets
from support.scripted import ScriptedExecutor
from support.talking import HERMES_TEMPLATE, Saying

HERMES = byte_level_assets(template=HERMES_TEMPLATE)


class Unit(enum.StrEnum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


class Place(pydantic.BaseModel):
    city: str
    units: Annotated[list[Unit], pydantic.Field(max_length=2)]


class Report(pydantic.BaseModel):
    """Nested models are $ref in the schema."""

    model_config = pydantic.ConfigDict(extra="forbid")
    places: list[Place]
    warm: bool | None


REPORT = '{"places": [{"city": "Köln", "units": ["celsius"]}], "warm": null}'


@tool
def get_weather(city: str, days: int = 1) -> str:
    """Weather of a city."""
    return f"sun in {city} for {days} days"


@pytest.fixture(scope="module")
def saying() -> Saying:
    return Saying(HERMES)


@pytest.fixture(scope="module")
def server(saying: Saying) -> Iterator[Running]:
    with serving(ScriptedExecutor(vocab_size=saying.vocab_size, emit=saying), HERMES) as it:
        yield it


@pytest.fixture
def chain(server: Running, monkeypatch: pytest.MonkeyPatch) -> ChatOpenAI:
    monkeypatch.setenv("LANGCHAIN_TRACING_V2", "false")
    return ChatOpenAI(base_url=f"{server.url}/v1", api_key=pydantic.SecretStr("none"), model=MODEL, max_retries=0)


CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln", "days": 2}}\n</tool_call>'


def test_a_turn_of_a_langchain_agent(chain: ChatOpenAI, saying: Saying) -> None:
    agent = chain.bind_tools([get_weather])
    saying.set(f"I look.\n{CALL}")
    messages: list[Any] = [HumanMessage("Weather?")]
    answer = agent.invoke(messages)
    [call] = answer.tool_calls
    assert (answer.content, call["name"], call["args"]) == ("I look.", "get_weather", {"city": "Köln", "days": 2})
    assert answer.response_metadata["finish_reason"] == "tool_calls"
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage)
    saying.set("Sunny.")
    assert agent.invoke([*messages, answer, result]).content == "Sunny."


@pytest.mark.parametrize("choice", ["auto", "any", "get_weather"])
def test_langchain_joins_streamed_calls(chain: ChatOpenAI, saying: Saying, choice: str) -> None:
    saying.set(CALL)
    joined: Any = None
    for chunk in chain.bind_tools([get_weather], tool_choice=choice).stream("Weather?"):
        joined = chunk if joined is None else joined + chunk
    assert [(call["name"], call["args"]) for call in joined.tool_calls] == [
        ("get_weather", {"city": "Köln", "days": 2})
    ]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_structured_output(chain: ChatOpenAI, saying: Saying, method: Any) -> None:
    saying.set(REPORT)
    if method == "function_calling":
        saying.set(f'<tool_call>\n{{"name": "Report", "arguments": {REPORT}}}\n</tool_call>')
    report = chain.with_structured_output(Report, method=method).invoke("Report!")
    assert report == Report.model_validate_json(REPORT)


def test_pydantic_models_with_the_official_client(server: Running, saying: Saying) -> None:
    saying.set(REPORT)
    messages: Any = [{"role": "user", "content": "Report!"}]
    reply = server.api.chat.completions.parse(model=MODEL, messages=messages, response_format=Report)
    assert reply.choices[0].message.parsed == Report.model_validate_json(REPORT)
