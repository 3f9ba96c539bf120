"""What is said of a value of the wrong type: JSON's words for what it should be, and never the value."""

import json
from typing import Any, Literal

import pytest
from pydantic import Field

from legato.core.errors import RequestError
from legato.protocol.chat import ChatBody
from legato.protocol.completion import CompletionBody
from legato.protocol.parse import Body, parse_body
from legato.protocol.tokens import DetokenizeBody, TokenizeBody

SECRET = "s3cr3t"
BASES: dict[type[Body], dict[str, Any]] = {
    CompletionBody: {"prompt": "x"},
    ChatBody: {"messages": []},
    TokenizeBody: {},
    DetokenizeBody: {"tokens": []},
}
WRONG = (True, 1, 1.5, 10**400, SECRET, [SECRET], {"type": SECRET}, {SECRET: [SECRET]}, [[SECRET]], [{}])


class Inner(Body):
    mode_: Literal["\u00e9", "a\nb", None] = Field(alias="mode")


class Named(Body):
    text: Literal["True or False", "it's", 'say "no"', "None"] | None = None
    switch: bool | Literal["never"] | None = None
    off: Literal[False, 3] | None = None
    lists: list[list[Literal["never"] | bool]] | None = None
    objects: dict[str, Inner | Literal[7]] | None = None


def message(kind: type[Body], body: dict[str, Any]) -> str:
    with pytest.raises(RequestError) as refused:
        parse_body(kind, json.dumps(body).encode(), {})
    return str(refused.value)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"temperature": "1"}, "temperature should be a number"),
        ({"logit_bias": []}, "logit_bias should be an object"),
        ({"stop": 1}, "stop should be a string or a list"),
        ({"stream": 1}, "stream should be true or false"),
        ({"response_format": "json"}, "response_format should be an object"),
        ({"response_format": {"type": "xml"}}, 'response_format.type should be "text", "json_object" or "json_schema"'),
        ({"store": True}, "store should be false"),
        ({"early_stopping": 1}, 'early_stopping should be true or false or "never"'),
    ],
)
def test_fields_of_a_chat(body: dict[str, Any], said: str) -> None:
    assert message(ChatBody, {"messages": [], **body}) == said


def test_words_of_python_in_a_text_stay() -> None:
    assert message(Named, {"text": "x"}) == 'text should be "True or False", "it\'s", "say \\"no\\"" or "None"'
    assert message(Named, {"switch": 3}) == 'switch should be true or false or "never"'
    assert message(Named, {"off": True}) == "off should be false or 3"


def test_allowed_values_are_those_of_the_field_at_any_depth() -> None:
    assert message(Named, {"lists": [[True], [True, 3]]}) == 'lists[1][1] should be "never" or true or false'
    assert message(Named, {"objects": {"x": {"mode": 1}}}) == 'objects.x.mode should be "é", "a\\nb" or null'
    assert message(Named, {"objects": {"x": 1}}) == "objects.x should be an object or 7"
    assert message(Named, {"objects": {"x": {"Inner": {}, "mode": 1}}}) == "objects.x.Inner should be another value"


@pytest.mark.parametrize("kind", BASES)
def test_every_type_has_words_and_no_value_is_told(kind: type[Body]) -> None:
    for name in kind.model_fields:
        for value in WRONG:
            try:
                parse_body(kind, json.dumps({**BASES[kind], name: value}).encode(), {}, ignored=[])
            except RequestError as refused:
                told = str(refused)
                assert "another value" not in told
                assert "valid" not in told  # pydantic's own words
                assert SECRET not in told.removeprefix(f"{name}.{SECRET}"), told
