"""Grammar of an answer that may or may not call tools: a text, and perhaps calls behind it."""

import json
import re
from collections.abc import Mapping

from legato.chat.calls import ToolFormat
from legato.chat.json_calls import on_one_line
from legato.core.errors import RequestError
from legato.core.grammar import Grammar

__all__ = ["either", "free_grammar"]


def free_grammar(format: ToolFormat, forced: str, control: Mapping[str, int]) -> str:
    """forced: the format's grammar of calls alone. A bare call has no text before it; a marked one follows any text.

    Text cannot hold what begins a call, so that every call is held to the grammar.
    """
    rules = forced.removeprefix("start: open calls\n")
    without = "".join(f" & ~/(.|\\n)*{_pattern(o)}(.|\\n)*/" for o in format.openers if o not in control)
    if format.bare:
        bare = re.escape(format.bare)
        return f"start: TEXT | calls\nTEXT: /(\\s*[^\\s{bare}](.|\\n)*)?/{without}\n{rules}"
    opener = format.openers[0]
    if opener in control:
        return f"start: TEXT (open calls)?\nTEXT: /(.|\\n)*/\n{rules}"
    # A greedy text could not end before the opener.
    return f"start: TEXT | marked calls\nTEXT: /(.|\\n)*/{without}\nmarked[lazy]: /(.|\\n)*{_pattern(opener)}/\n{rules}"


def either(answer: Grammar, calls: str) -> str:
    """Grammar of an answer that is JSON on one line, or calls. RequestError for an answer of another kind."""
    if answer.kind not in ("json_object", "json_schema"):
        raise RequestError(f"{answer.param} of another kind than JSON does not go with tools", param=answer.param)
    schema = json.loads(answer.source or "{}")
    if answer.kind == "json_object":
        schema = {"type": "object", **schema}
    schema = on_one_line(schema if isinstance(schema, dict) else {"allOf": [schema]})
    rules = calls.removeprefix("start: open calls\n")
    return f"start: answer | open calls\nanswer: %json {json.dumps(schema)}\n{rules}"


def _pattern(text: str) -> str:
    return re.escape(text).replace("/", r"\/")
