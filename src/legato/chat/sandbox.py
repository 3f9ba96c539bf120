"""A Jinja environment for templates that nobody here has read.

A chat template comes from a model file, so it is code from outside. It must reach nothing but its own variables, and
it must not be able to hang or fill the process:

- Jinja's ImmutableSandboxedEnvironment, narrowed: attributes exist only on strings (a list of methods), mappings,
  sequences and Jinja's own objects; only listed filters and globals exist; nothing loads other templates.
- Whatever a template does is paid from a budget of work units (budget.py). What the sandbox does not intercept, loops,
  output, `~`, comparisons and slices, is led through filters that pay.

Settings are those of transformers, so that templates give the same text: trim_blocks, lstrip_blocks, loop controls,
`tojson` without HTML escapes, `raise_exception`, `strftime_now`, and a `generation` block that does nothing.
"""

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from jinja2 import Environment, Template, TemplateError, nodes, pass_context
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

from legato.chat.budget import BUDGET, Budget, TemplateTooExpensive

__all__ = ["Sandbox", "TemplateRefusal"]

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
    "title", "trim", "truncate", "unique", "upper", "urlencode",
]  # fmt: skip
_PASSED_BY_JINJA = (Context, Environment, nodes.EvalContext)
_GLOBALS = ("range", "dict", "namespace", "joiner", "cycler")


class TemplateRefusal(TemplateError):
    """The template itself called raise_exception: its sentence is meant for the user."""


class Sandbox(ImmutableSandboxedEnvironment):
    """Compiles and renders chat templates. Threads may render at the same time, each with its own budget."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, budget: int = BUDGET) -> None:
        """budget: work units of one rendering."""
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, LoopControlExtension])
        self._budget = Budget(budget)
        self.filters = {name: self._paid_filter(name, self.filters[name]) for name in _FILTERS}
        self.filters["tojson"] = self._tojson
        self.filters |= {"#rounds": self._rounds, "#operand": self._operand, "#sliced": self._sliced}
        self.filters |= {"#joined": self._joined, "#written": self._written}
        self.tests = {name: self._paid_test(test) for name, test in self.tests.items()}  # type: ignore[arg-type]
        self.globals = {name: self.globals[name] for name in _GLOBALS}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def compile_template(self, source: str) -> Template:
        """Raises TemplateSyntaxError, and TemplateTooExpensive where constant parts alone exceed the budget."""
        self._budget.reset()
        return self.from_string(source)

    def render(self, template: Template, variables: Mapping[str, Any]) -> str:
        """The rendered text. Raises whatever the template's code raises, TemplateTooExpensive beyond the budget."""
        self._budget.reset()
        return template.render(variables)

    # What compiled templates call.

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in _STR_METHODS
        return isinstance(obj, _OPEN_TYPES) and super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        args = tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args)
        if isinstance(__obj, Macro):
            __self._budget.spend_shallow(*args)
        else:
            __self._budget.method(getattr(__obj, "__self__", None), getattr(__obj, "__name__", ""), args)
        result = super().call(__context, __obj, *args, **kwargs)
        __self._budget.spend_shallow(result)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def paid(*args: Any, **kwargs: Any) -> str:
            self._budget.format(value.__self__, [args, kwargs])
            return wrapped(*args, **kwargs)

        return paid

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self._budget.operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _Meter().visit(tree)
        return tree

    # Filters and tests.

    def _paid_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def paid(*args: Any, **kwargs: Any) -> Any:
            own = [arg for arg in args if isinstance(arg, _PASSED_BY_JINJA)]
            values = [arg for arg in args if not isinstance(arg, _PASSED_BY_JINJA)]
            self._budget.filter(name, values, kwargs)
            result = function(*own, *values, **kwargs)
            self._budget.spend_shallow(result)
            return result

        return paid

    def _paid_test(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def paid(*args: Any) -> Any:
            values = [arg for arg in args if not isinstance(arg, _PASSED_BY_JINJA)]
            self._budget.spend_deep(values if len(values) > 1 else None)
            return function(*args)

        return paid

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        self._budget.json(value, indent)
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        self._budget.spend_shallow(text)
        return text

    # Where _Meter leads things through.

    def _rounds(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self._budget.spend()
            yield value

    def _operand(self, value: Any) -> Any:
        self._budget.spend_deep(value)
        return value

    def _sliced(self, value: Any) -> Any:
        self._budget.spend_shallow(value)
        return value

    def _joined(self, values: list[Any]) -> str:
        self._budget.spend_deep(values)
        return "".join(map(str, values))

    @pass_context
    def _written(self, context: Context, value: Any) -> Any:
        """Takes the context only so that constant output is not computed once, at compile time, and then for free."""
        self._budget.spend_deep(value)
        return value


class _Meter(NodeTransformer):
    """Leads what the sandbox does not intercept through the filters above."""

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
            node.node = _filtered(node.node, "#sliced")
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
