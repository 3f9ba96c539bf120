"""How one model writes what is not plain text: the format of its tool calls, and the marks of its reasoning."""

import re
from collections.abc import Sequence

from legato.chat.answer import AnswerReader, call_id
from legato.chat.calls import CallReader, FoundCalls, ToolFormat
from legato.chat.free import either, free_grammar
from legato.chat.hermes import HERMES
from legato.chat.json_calls import ForcedCalls
from legato.chat.llama3_json import LLAMA3_JSON
from legato.chat.mistral import MISTRAL, MISTRAL_NAMED
from legato.chat.pythonic import PYTHONIC
from legato.chat.reasoning import END, REASONING_PARSERS, START, ReasoningMarks, ReasoningSplit
from legato.core.answers import Reasoning, ToolUse
from legato.core.errors import ConfigError, RequestError
from legato.core.grammar import Grammar
from legato.tokenizer.tokenizer import Tokenizer

__all__ = ["FORMATS", "Dialect"]

FORMATS = {format.name: format for format in (HERMES, MISTRAL, LLAMA3_JSON, PYTHONIC)}


class Dialect:
    """Chosen by the flags --tool-call-parser and --reasoning-parser, or found in the chat template."""

    def __init__(self, tokenizer: Tokenizer, tool_parser: str = "auto", reasoning_parser: str = "auto") -> None:
        """ConfigError for a reasoning parser whose marks are no tokens of the model."""
        source = tokenizer.assets.chat_template or ""
        self._control = tokenizer.special_tokens
        self._format = _chosen(tool_parser, source)
        self._reasoning = _reasoning_marks(tokenizer, source, reasoning_parser)

    @property
    def written(self) -> ToolFormat:
        """How calls are written for a template that knows nothing of tools."""
        return self._format or HERMES

    @property
    def format(self) -> ToolFormat:
        """The format of tool calls. RequestError where it is not known."""
        if self._format is None:
            raise RequestError(
                "tools: this model's chat template writes calls in a form that is not known here; "
                "start the server with --tool-call-parser",
                param="tools",
                code="unsupported_parameter",
            )
        return self._format

    def reasoning_after(self, prompt: Sequence[int]) -> Reasoning | None:
        """The reasoning that may follow a prompt; None where there can be none."""
        return self._reasoning.after(prompt) if self._reasoning else None

    def shown_token_ids(self, use: ToolUse) -> frozenset[int]:
        """Control tokens that a reader has to see in the text."""
        marks = {START, END} if self._reasoning else set()
        if use.tools:
            marks |= {*self.format.openers, *self.format.inner, *self.format.closers}
        return frozenset(self._control[mark] for mark in marks if mark in self._control)

    def grammar(self, use: ToolUse, answer: Grammar | None) -> Grammar | None:
        """Grammar of what comes behind the reasoning; None where it is free. RequestError.

        answer: what the answer has to look like where it is no call.
        """
        if not use.held and not (use.tools and answer):
            return answer
        calls = self.format.grammar(use.tools, use.one, self._control)
        if use.forced and answer is not None:
            raise RequestError(f"{answer.param} and calls that have to be made exclude each other", param="tool_choice")
        if not use.forced:
            calls = free_grammar(self.format, calls, self._control) if answer is None else either(answer, calls)
        return Grammar("lark", calls, "tools")

    def reader(self, use: ToolUse, reasoning: Reasoning | None, *, show_reasoning: bool = True) -> AnswerReader:
        """A reader of one choice. reasoning: as the request has it; None: the answer has none."""
        split = ReasoningSplit(opened=reasoning.opened) if reasoning else None
        calls: CallReader | None = None
        length = 0
        if use.tools:
            format = self.format
            length = format.id_length
            if use.forced and format.forced_head is not None:
                calls = ForcedCalls(format.forced_head, format.forced_tail)
            else:
                calls = FoundCalls(format, [tool.name for tool in use.tools])
        return AnswerReader(split, calls, lambda: call_id(length), show_reasoning=show_reasoning)


def _chosen(parser: str, template: str) -> ToolFormat | None:
    format = _detected(template) if parser == "auto" else FORMATS[parser]
    newer = format is MISTRAL and any(sign in template for sign in MISTRAL_NAMED.signs)
    return MISTRAL_NAMED if newer else format


def _detected(template: str) -> ToolFormat | None:
    """The format whose signs a template has. One that knows no tools is given them as a text, in the first format."""
    for format in FORMATS.values():
        if any(sign in template for sign in format.signs):
            return format
    return None if re.search(r"\btools\b", template) else HERMES


def _reasoning_marks(tokenizer: Tokenizer, template: str, parser: str) -> ReasoningMarks | None:
    if parser == "none":
        return None
    if parser != "auto":
        return ReasoningMarks(tokenizer, always=parser == REASONING_PARSERS[1])
    if END not in template:
        return None
    try:
        return ReasoningMarks(tokenizer, always=False)
    except ConfigError:
        return None  # the template speaks of reasoning, but this model has no tokens for it
