"""Fields of tools and messages with calls: whatever they hold, they are understood or refused."""

from collections.abc import Callable
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from legato.chat.dialect import FORMATS
from legato.chat.messages import normalized
from legato.chat.tool_prompt import plain_talk
from legato.core.errors import RequestError
from legato.protocol.messages import check_messages
from legato.protocol.tools import tool_use

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


def mostly(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(value, value, value, JSON)


def fields(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={name: mostly(value) for name, value in values.items()})


SCHEMA = fields(
    type=st.just("object"),
    properties=st.dictionaries(st.sampled_from(["a", "b", "not a name"]), JSON, max_size=2),
    required=st.lists(st.sampled_from(["a", "b"]), max_size=2),
)
FUNCTION = fields(
    name=st.sampled_from(["f", "g", "a.b-c"]), description=st.text(max_size=4), parameters=SCHEMA, strict=st.booleans()
)
TOOLS = mostly(st.lists(mostly(fields(type=st.just("function"), function=FUNCTION)), min_size=1, max_size=2))
CHOICE = mostly(st.sampled_from(["none", "auto", "required", {"type": "function", "function": {"name": "f"}}]))
CALL = fields(
    id=st.just("call_1"),
    type=st.just("function"),
    function=fields(name=st.just("f"), arguments=st.sampled_from(["{}", '{"a": [1]}', "", "[]", "{"])),
)
MESSAGE = fields(
    role=st.sampled_from(["user", "assistant", "assistant", "tool", "tool", "function"]),
    content=st.text(max_size=3),
    tool_calls=st.lists(mostly(CALL), max_size=2),
    tool_call_id=st.just("call_1"),
    reasoning=st.text(max_size=3),
)


def called(name: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def refused(make: Callable[[], Any]) -> Any:
    """What is made; None where it is refused, which names the field in few words."""
    refusal: RequestError | None = None
    made = None
    try:
        made = make()
    except RequestError as error:
        refusal = error
    if refusal is not None:
        assert refusal.param
        assert 0 < len(str(refusal)) < 500
    return made


@settings(max_examples=200)
@example([called("f", properties={"a": {}}, required=5)], "required", True, "pythonic")
@example([called("f", properties=None)], "required", True, "pythonic")
@given(TOOLS, CHOICE, st.booleans(), st.sampled_from(sorted(FORMATS)))
def test_any_tools_give_a_grammar_or_are_refused(tools: Any, choice: Any, parallel: bool, format: str) -> None:
    def grammar() -> str | None:
        use = tool_use(tools if isinstance(tools, list) else None, choice, parallel)
        return FORMATS[format].grammar(use.tools, use.one, {"[TOOL_CALLS]": 7}) if use.tools else None

    made = refused(grammar)
    assert made is None or made.startswith("start: open calls\n")


@settings(max_examples=200)
@given(st.lists(MESSAGE, min_size=1, max_size=3), st.sampled_from(sorted(FORMATS)))
def test_any_talk_is_told_plainly_or_refused(messages: list[Any], format: str) -> None:
    talk = refused(lambda: plain_talk(normalized(check_messages(messages)), [], FORMATS[format]))
    for message in talk or ():
        assert message["role"] in ("system", "user", "assistant")
        assert isinstance(message["content"], str)
        assert "tool_calls" not in message
