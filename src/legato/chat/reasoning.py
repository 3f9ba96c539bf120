"""Reasoning in front of an answer: <think>...</think>."""

from collections.abc import Sequence

from legato.core.answers import Reasoning
from legato.core.errors import ConfigError
from legato.tokenizer.tokenizer import Tokenizer

__all__ = ["END", "REASONING_PARSERS", "START", "ReasoningMarks", "ReasoningSplit"]

START, END = "<think>", "</think>"
REASONING_PARSERS = ("qwen3", "deepseek_r1")


class ReasoningMarks:
    """The two marker tokens of a model, and what a prompt says about the reasoning that follows it."""

    def __init__(self, tokenizer: Tokenizer, *, always: bool) -> None:
        """always: there is reasoning even where neither prompt nor answer opens it. ConfigError without the tokens."""
        self._tokenizer = tokenizer
        self._always = always
        self.start_id, self.end_id = (_token(tokenizer, text) for text in (START, END))

    def after(self, prompt: Sequence[int]) -> Reasoning | None:
        """The reasoning that may follow a prompt; None where the prompt ends behind an empty one."""
        for i in range(len(prompt) - 1, -1, -1):
            if prompt[i] == self.end_id:
                return None
            if prompt[i] == self.start_id:
                return Reasoning(self.start_id, self.end_id, opened=True)
            if self._tokenizer.token_bytes(prompt[i]).strip():
                break
        return Reasoning(self.start_id, self.end_id, opened=self._always)


class ReasoningSplit:
    """Cuts the text of one answer into reasoning and content. Does not depend on how the text arrives.

    The markers are dropped, with the white space inside of them and behind the second one.
    """

    def __init__(self, *, opened: bool) -> None:
        """opened: the text begins inside the reasoning; else it does so only if it begins with the marker."""
        self._opened = opened
        self._begun = False  # whether a marker at the beginning has been looked for
        self._inside = opened
        self._bare = True  # nothing but white space so far, in the part that we are in
        self._held = ""

    def push(self, text: str) -> tuple[str, str]:
        """Takes more text; more reasoning and more content."""
        self._held += text
        if not self._begun and not self._begin():
            return "", ""
        if not self._inside:
            return "", self._content()
        reasoning, marker, rest = self._held.partition(END)
        if marker:
            self._held = rest
            self._inside = False
            shown = self._without_leading_space(reasoning.rstrip())
            self._bare = True
            return shown, self._content()
        keep = len(reasoning) - next(n for n in range(len(END) - 1, -1, -1) if reasoning.endswith(END[:n]))
        keep = len(reasoning[:keep].rstrip())
        self._held = reasoning[keep:]
        return self._without_leading_space(reasoning[:keep]), ""

    def finish(self) -> tuple[str, str]:
        """The text ends here: what was held back."""
        rest, self._held = self._held, ""
        return (rest.rstrip(), "") if self._inside else ("", rest if not self._begun else "")

    def _begin(self) -> bool:
        text = self._held.lstrip()
        if START.startswith(text) and text != START:
            return False
        self._begun = True
        if text.startswith(START):
            self._held = text[len(START) :]
            self._inside = True
        elif not self._opened:
            self._bare = False  # no reasoning at all: the content keeps its white space
        return True

    def _content(self) -> str:
        text, self._held = self._held, ""
        return self._without_leading_space(text)

    def _without_leading_space(self, text: str) -> str:
        if self._bare:
            text = text.lstrip()
            self._bare = not text
        return text


def _token(tokenizer: Tokenizer, text: str) -> int:
    ids = tokenizer.encode(text, add_special_tokens=False, parse_special=True)
    if len(ids) != 1:
        raise ConfigError(f"reasoning_parser: {text} is not a token of this model")
    return ids[0]
