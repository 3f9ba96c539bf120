"""Grammar of an answer that may or may not call tools: a text, and perhaps calls behind it."""

import re
from collections.abc import Mapping

from legato.chat.calls import ToolFormat

__all__ = ["free_grammar"]


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


def _pattern(text: str) -> str:
    return re.escape(text).replace("/", r"\/")
