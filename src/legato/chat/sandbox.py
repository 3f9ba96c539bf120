"""A Jinja environment for templates that nobody here has read.

A chat template comes from a model file, so it is code from outside. It must reach nothing but its own variables, and
it must not be able to hang or fill the process. Three things see to that:

- Jinja's ImmutableSandboxedEnvironment, narrowed: attributes exist only on strings (a list of methods), mappings,
  sequences and Jinja's own objects; only listed filters and globals exist; nothing loads other templates.
- A budget of work units per rendering. Every loop round, call, filter, test, comparison, slice, operator and output
  costs a fixed amount plus the size of what it handles. The budget counts work, not time: a template that passes
  once always passes.
- What can blow up from small arguments (`*`, `**`, replace, join, indent, round, format) is measured before it runs.

Settings are those of transformers, so that templates give the same text: trim_blocks, lstrip_blocks, loop controls,
`tojson` without HTML escapes, `raise_exception`, `strftime_now`, and a `generation` block that does nothing.
"""

import functools
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

__all__ = ["Sandbox", "TemplateRefusal", "TemplateTooExpensive"]

BUDGET = 1 << 26  # work units of one rendering: a million steps, or 64 Mi characters
STEP = 64  # units of one loop round, call, filter or operator; a character or element is one unit
MAX_BITS = 4096  # of an integer that a template computes

_STR_METHODS = frozenset([
    "capitalize", "casefold", "count", "endswith", "find", "format", "index", "isalnum", "isalpha", "isascii",
    "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip",
    "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip",
    "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper",
])  # fmt: skip
_OPEN_TYPES = (Mapping, list, tuple, LoopContext, Macro, Namespace, Joiner, Cycler, Undefined)
_FILTERS = [
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "format",
    "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min",
    "reject", "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr", "sort", "string",
    "title", "trim", "truncate", "unique", "upper", "urlencode", "wordcount",
]  # fmt: skip
_GLOBALS = ("range", "dict", "namespace", "joiner", "cycler")
_FREE = frozenset({"count", "length", "first", "last", "d", "default", "safe"})  # filters that do not look inside


class TemplateRefusal(TemplateError):
    """The template itself called raise_exception: its sentence is meant for the user."""


class TemplateTooExpensive(TemplateError):
    """The template needs more work than any real one."""


class Sandbox(ImmutableSandboxedEnvironment):
    """Compiles and renders chat templates. Threads may render at the same time, each with its own budget."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, budget: int = BUDGET) -> None:
        """budget: work units of one rendering."""
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, LoopControlExtension])
        self._budget = budget
        self._local = threading.local()
        self.filters = {name: self._limited_filter(name, self.filters[name]) for name in _FILTERS}
        self.filters["tojson"] = self._tojson
        self.filters |= {"#rounds": self._rounds, "#operand": self._operand, "#joined": self._joined}
        self.filters["#written"] = pass_context(
            lambda context, value: self._operand(value)
        )  # never folded to a constant
        self.tests = {name: self._limited_test(test) for name, test in self.tests.items()}  # type: ignore
        self.globals = {name: self.globals[name] for name in _GLOBALS}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def compile_template(self, source: str) -> Template:
        """Raises TemplateSyntaxError, and TemplateTooExpensive where constant parts alone exceed the budget."""
        self._local.left = self._budget
        return self.from_string(source)

    def render(self, template: Template, variables: Mapping[str, Any]) -> str:
        """The rendered text. Raises whatever the template's code raises, TemplateTooExpensive beyond the budget."""
        self._local.left = self._budget
        return template.render(variables)

    def spend(self, size: int) -> None:
        """Takes one step and `size` units off the budget of this thread's rendering."""
        self._local.left -= STEP + size
        if self._local.left < 0:
            raise TemplateTooExpensive("the chat template needs too much work for these messages")

    # What compiled templates call.

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in _STR_METHODS
        return isinstance(obj, _OPEN_TYPES) and super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str):
            __self._check_method(owner, name, args)
        else:
            __self.spend(0)
        result = super().call(__context, __obj, *args, **kwargs)
        __self.spend(_length(result))
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def limited(*args: Any, **kwargs: Any) -> str:
            self._check_format(value.__self__, (args, kwargs))
            return wrapped(*args, **kwargs)

        return limited

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            self._check_product(left, right)
        elif operator == "**":
            self._check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            self._check_format(left, right)
        else:
            self.spend(_length(left) + _length(right))
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _Meter().visit(tree)
        return tree

    # Costs.

    def _spend_deep(self, value: Any) -> None:
        """Pays for all strings and elements inside a value, shared ones as often as they would be written."""
        if isinstance(value, str):
            self.spend(len(value))
        elif isinstance(value, Mapping):
            for key, item in value.items():
                self._spend_deep(key)
                self._spend_deep(item)
        elif isinstance(value, list | tuple):
            for item in value:
                self._spend_deep(item)
        else:
            self.spend(0)

    def _check_method(self, text: str, name: str, args: tuple[Any, ...]) -> None:
        if name == "replace" and len(args) >= 2:
            self._check_replace(text, args[0], args[1])
        elif name == "join":
            self._spend_deep(args)
            self.spend(len(text) * sum(_length(arg) for arg in args))
        else:
            self.spend(len(text) + sum(_length(arg) for arg in args))

    def _check_replace(self, text: str, old: Any, new: Any) -> None:
        rounds = text.count(str(old)) if str(old) else len(text) + 1
        self.spend(len(text) + rounds * len(str(new)))

    def _check_product(self, left: Any, right: Any) -> None:
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, str | list | tuple) and isinstance(times, int):
                self.spend(len(sequence) * max(times, 0))
                return
        self.spend(0)
        if _bits(left) + _bits(right) > MAX_BITS:
            raise TemplateTooExpensive("the chat template computes with too large numbers")

    def _check_power(self, left: Any, right: Any) -> None:
        self.spend(0)
        if isinstance(right, int) and _bits(left) * abs(right) > MAX_BITS:
            raise TemplateTooExpensive("the chat template computes with too large numbers")

    def _check_format(self, text: str, args: Any) -> None:
        """Widths must be short literals: a small format can otherwise ask for a large text."""
        if re.search(r"\d{4}|%[^a-zA-Z%]*\*|\{[^}]*\{", text):
            raise TemplateTooExpensive("the chat template formats with a computed or too large width")
        self.spend(len(text) + 1000 * (text.count("%") + text.count("{")))
        self._spend_deep(args)

    # Filters and tests.

    def _limited_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that pays for its arguments and its result, and is measured first where it can blow up."""

        @functools.wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            values = [arg for arg in args if not isinstance(arg, Context | Sandbox | nodes.EvalContext)]
            self._check_filter(name, values, kwargs)
            result = function(*args, **kwargs)
            if name not in _FREE:
                self.spend(_length(result))
            return result

        return limited

    def _check_filter(self, name: str, values: list[Any], kwargs: Mapping[str, Any]) -> None:
        if name == "replace" and len(values) >= 3:
            self._check_replace(str(values[0]), values[1], values[2])
        elif name in ("join", "string", "unique", "sort", "groupby", "dictsort", "urlencode", "e", "escape"):
            self._spend_deep(values)
            if name == "join":
                separator = values[1] if len(values) > 1 else kwargs.get("d", "")
                self.spend(_length(values[0]) * _length(separator))
        elif name == "indent":
            width = values[1] if len(values) > 1 else kwargs.get("width", 4)
            self.spend(_length(values[0]) * (width if isinstance(width, int) else _length(width)))
        elif name == "round":
            if any(_bits(value) > 6 for value in (*values[1:], *kwargs.values())):
                raise TemplateTooExpensive("the chat template rounds to too many digits")
            self.spend(0)
        elif name == "format":
            self._check_format(str(values[0]), (values[1:], kwargs))
        elif name not in _FREE:
            self.spend(sum(map(_length, values)))
        else:
            self.spend(0)

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        if isinstance(indent, int) and indent > 16:
            raise TemplateTooExpensive("the chat template indents JSON too far")
        self._spend_deep(value)
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        self.spend(len(text))
        return text

    def _limited_test(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A test that pays for what it may compare."""

        @functools.wraps(function)
        def limited(*args: Any) -> Any:
            if len(args) > 1:
                self._spend_deep([arg for arg in args if not isinstance(arg, Context | Sandbox | nodes.EvalContext)])
            else:
                self.spend(0)
            return function(*args)

        return limited

    def _rounds(self, values: Iterable[Any]) -> Iterator[Any]:
        """What a loop runs over."""
        for value in values:
            self.spend(0)
            yield value

    def _operand(self, value: Any) -> Any:
        """What is written, compared or sliced."""
        self._spend_deep(value)
        return value

    def _joined(self, values: list[Any]) -> str:
        """The operator `~`."""
        self._spend_deep(values)
        return "".join(map(str, values))


class _Meter(NodeTransformer):
    """Routes what the sandbox does not intercept (loops, output, `~`, comparisons, slices) through counting filters."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "#rounds")
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Output:
        self.generic_visit(node)
        node.nodes = [_filtered(child, "#written") for child in node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "#joined")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        self.generic_visit(node)
        node.expr = _filtered(node.expr, "#operand")
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, "#operand")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Getitem:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _filtered(node.node, "#operand")
        return node


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; here its content is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise TemplateRefusal(str(message))


def _strftime_now(format: str) -> str:
    if len(format) > 256:
        raise TemplateTooExpensive("the chat template asks for a too long date format")
    return datetime.now().strftime(format)


def _length(value: Any) -> int:
    """Size of a value without looking inside."""
    return len(value) if isinstance(value, str | list | tuple | Mapping) else 0


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0
