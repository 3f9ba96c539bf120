"""Messages to prompt ids through the model's own chat template."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Template, TemplateSyntaxError, meta

from legato.chat.budget import TemplateTooExpensive
from legato.chat.calls import ToolFormat
from legato.chat.guard import Guard
from legato.chat.hermes import HERMES
from legato.chat.messages import normalized
from legato.chat.sandbox import Sandbox, TemplateRefusal
from legato.chat.tool_prompt import plain_talk
from legato.core.errors import CheckpointError, RequestError
from legato.tokenizer.tokenizer import Tokenizer

__all__ = ["ChatTemplate"]

_FIELDS = ("documents", "reasoning_effort")  # of a request, which are template variables under the same name


class ChatTemplate:
    """A compiled chat template. Safe to use from several threads at once.

    Control tokens in messages (or tools) stay text: only those that the template writes become control tokens. For
    messages without any, the ids are those of transformers' `apply_chat_template`.
    """

    def __init__(self, source: str | None, tokenizer: Tokenizer, param: str = "messages") -> None:
        """source: Jinja text, None where the model has none. param: the field to blame where it cannot be rendered.

        Raises CheckpointError for one that is no template.
        """
        self._param = param
        self._tokenizer = tokenizer
        self._guard = Guard(tokenizer.special_tokens)
        self._sandbox = Sandbox()
        self._template: Template | None = None
        self._variables = frozenset[str]()
        if source is None:
            return
        try:
            self._template = self._sandbox.compile_template(source)
            self._variables = frozenset(meta.find_undeclared_variables(self._sandbox.parse(source)))
        except TemplateSyntaxError as error:
            raise CheckpointError(f"chat_template, line {error.lineno}: {error.message}") from error
        except (TemplateTooExpensive, RecursionError) as error:
            raise CheckpointError(f"chat_template: {error}") from error

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_format: ToolFormat = HERMES,
        **kwargs: Any,
    ) -> list[int]:
        """Token ids of the prompt.

        messages: as in the OpenAI API; text parts are joined by a newline. tools: as there, too; a template that does
        not use them gets them, their calls and results as texts, calls in `tool_format`. kwargs: further template
        variables, which the template must use. continue_final_message: the prompt ends with the content of the last
        message, where the answer goes on. Raises RequestError: no template, contents that are not text, or the
        template's own sentence when it refuses the messages.
        """
        if self._template is None:
            raise RequestError(
                "this model has no chat template: use /v1/completions, or start the server with --chat-template",
                code="no_chat_template",
            )
        talk = normalized(messages)
        if "tools" not in self._variables:
            talk, tools = plain_talk(talk, tools, tool_format), ()
        values = {"messages": talk, "tools": list(tools) or None, **self._checked(kwargs)}
        try:
            marks = self._guard.marks(values)
            protected = marks.protect(values)
        except RecursionError as error:
            raise RequestError("the messages are nested too deeply", param="messages") from error
        end = marks.unused() if continue_final_message else ""
        if end:
            protected["messages"][-1]["content"] += end
        text = self._render(self._template, {**protected, "add_generation_prompt": add_generation_prompt})
        if end:
            text, found, _ = text.rpartition(end)
            if not found:
                raise RequestError(
                    "the chat template does not write the final message, which is to be continued",
                    param="continue_final_message",
                )
        parts = self._tokenizer.split_special(text)
        return self._tokenizer.encode_parts(part if isinstance(part, int) else marks.restore(part) for part in parts)

    def _checked(self, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in kwargs:
            if name in self._tokenizer.assets.template_tokens:
                raise RequestError(f"chat_template_kwargs: {name!r} is set by the model", param="chat_template_kwargs")
            self._require(name, name if name in _FIELDS else "chat_template_kwargs")
        return kwargs

    def _require(self, name: str, param: str) -> None:
        if name not in self._variables:
            raise RequestError(f"the chat template does not use {name!r}", param=param)

    def _render(self, template: Template, values: Mapping[str, Any]) -> str:
        variables = {"documents": None, **self._tokenizer.assets.template_tokens, **values}
        try:
            return self._sandbox.render(template, variables)
        except (TemplateRefusal, TemplateTooExpensive) as error:
            raise RequestError(str(error), param=self._param) from error
        except Exception as error:
            # The template is foreign code: it can raise anything.
            message = f"the chat template failed: {error or type(error).__name__}"
            raise RequestError(message, param=self._param) from error
