"""Tools for models whose chat template knows nothing of them: a system text, and calls and results as plain turns."""

from collections.abc import Mapping, Sequence
from typing import Any

from legato.chat.calls import ToolFormat
from legato.chat.json_calls import compact

__all__ = ["plain_talk"]


def plain_talk(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], format: ToolFormat
) -> list[dict[str, Any]]:
    """Normalized messages without tools, calls and results of their own.

    The tools are told in the system message, behind its own text if there is one. A call that the assistant made is
    text in its turn, as `format` writes it; results are a turn of the user, <tool_response>...</tool_response> each.
    """
    talk: list[dict[str, Any]] = []
    last_was_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result:
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if last_was_result:
                talk[-1]["content"] += "\n" + text
            else:
                talk.append({"role": "user", "content": text})
        else:
            talk.append(_plain(message, format))
        last_was_result = is_result
    if tools:
        _tell(talk, _system_text(tools, format))
    return talk


def _plain(message: Mapping[str, Any], format: ToolFormat) -> dict[str, Any]:
    plain = dict(message)
    calls = plain.pop("tool_calls", None) or ()
    written = [format.write(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    plain["content"] = "\n".join(filter(None, (plain["content"], *written)))
    return plain


def _tell(talk: list[dict[str, Any]], text: str) -> None:
    if talk and talk[0]["role"] == "system":
        talk[0]["content"] = "\n\n".join(filter(None, (talk[0]["content"], text)))
    else:
        talk.insert(0, {"role": "system", "content": text})


def _system_text(tools: Sequence[Mapping[str, Any]], format: ToolFormat) -> str:
    listed = "\n".join(map(compact, tools))
    return (
        "You can call functions to help with the user's request. These are the functions, one per line, with a JSON "
        f"schema of their arguments:\n<tools>\n{listed}\n</tools>\n\n"
        "To call one, answer with its name and its arguments in this form:\n"
        f"{format.write('NAME', {'ARGUMENT': 'VALUE'})}\n"
        "What it gives back comes in <tool_response></tool_response>."
    )
