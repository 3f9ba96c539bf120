"""Structured output: what a grammar is, what users write to get one, and what the scheduler knows of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from legato.core.errors import RequestError

__all__ = ["CompiledGrammar", "Grammar", "Matcher", "StructuredOutputsParams", "allows", "json_grammar"]

_OPTIONS = "x-guidance"  # where llguidance reads options from inside a schema
_CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object")


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the text of an answer must look like. `source` is read by kind.

    json_object  "" or a schema with options only: any JSON object
    json_schema  a JSON schema, as JSON text
    regex        a regular expression that matches the whole answer
    choice       a JSON list of strings, one of which is the answer
    lark         a grammar in llguidance's dialect of Lark, or in llama.cpp's GBNF

    `param` is the field that it came from, for errors.
    """

    kind: Literal["json_object", "json_schema", "regex", "choice", "lark"]
    source: str = ""
    param: str = "grammar"


class Matcher(Protocol):
    """Where one sequence is in its grammar. The scheduler reads `mask` and tells it each token; masks are bytes to it.

    mask: tokens that may come next, a little-endian bit per token id; end tokens are among them where the answer may
    end. None: it takes time to find, and most tokens fit. One that does not is to be sampled again, with the mask that
    `fits` has found then. complete: the answer is whole and nothing can follow. failure: why there is no next token,
    None while there is. `accept` is for tokens that fit, but for end tokens.
    """

    @property
    def mask(self) -> bytes | None: ...
    @property
    def complete(self) -> bool: ...
    @property
    def failure(self) -> str | None: ...
    def fits(self, token: int) -> bool: ...
    def accept(self, token: int) -> None: ...


def allows(mask: bytes, token: int) -> bool:
    """Whether a mask has the bit of a token."""
    return bool(mask[token // 8] >> token % 8 & 1)


class CompiledGrammar(Protocol):
    """A grammar that is ready for use. Every sequence gets a matcher of its own.

    max_tokens: an answer of JSON is brought to its end before it is that long; None: it is not. may_retry: a token that
    was sampled without a mask may be sampled again with one if it does not fit.
    """

    vocab_size: int

    def matcher(
        self, end_token_ids: frozenset[int], max_tokens: int | None = None, *, may_retry: bool = False
    ) -> Matcher: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """vLLM's structured_outputs: exactly one of json, regex, choice, grammar and json_object, and options for JSON.

    json is a schema or its text. Without options, white space between the tokens of JSON is one space, or a new line
    and up to 16 spaces or tabs. disable_additional_properties: objects whose schema does not speak of other properties
    than those it lists have no others.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def to_grammar(self, param: str = "structured_outputs") -> Grammar:
        """The grammar that this describes. RequestError names the field; the grammar itself is not compiled here."""
        given = [name for name in _CONSTRAINTS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise RequestError(f"{param} needs exactly one of {', '.join(_CONSTRAINTS)}", param=param)
        self._check_options(given[0], param)
        if self.json is not None:
            return json_grammar(self.json, f"{param}.json", self._options(), closed=self.disable_additional_properties)
        if self.json_object:
            options = self._options()
            return Grammar("json_object", json.dumps({_OPTIONS: options}) if options else "", f"{param}.json_object")
        if self.regex is not None:
            return Grammar("regex", _text(self.regex, f"{param}.regex"), f"{param}.regex")
        if self.choice is not None:
            choices = list(self.choice)
            if not choices or not all(isinstance(choice, str) and choice for choice in choices):
                raise RequestError(f"{param}.choice must hold non-empty strings", param=f"{param}.choice")
            return Grammar("choice", json.dumps(choices), f"{param}.choice")
        assert self.grammar is not None
        return Grammar("lark", _text(self.grammar, f"{param}.grammar"), f"{param}.grammar")

    def _options(self) -> dict[str, Any]:
        if self.disable_any_whitespace:
            return {"whitespace_flexible": False}
        return {} if self.whitespace_pattern is None else {"whitespace_pattern": self.whitespace_pattern}

    def _check_options(self, constraint: str, param: str) -> None:
        for name in ("disable_any_whitespace", "whitespace_pattern"):
            if getattr(self, name) and constraint not in ("json", "json_object"):
                raise RequestError(f"{param}.{name} works with json and json_object only", param=f"{param}.{name}")
        if self.disable_additional_properties and constraint != "json":
            name = f"{param}.disable_additional_properties"
            raise RequestError(f"{name} works with json only", param=name)
        if self.disable_any_whitespace and self.whitespace_pattern is not None:
            name = f"{param}.whitespace_pattern"
            raise RequestError(f"{name} contradicts disable_any_whitespace", param=name)


def json_grammar(
    schema: str | bool | Mapping[str, Any],
    param: str,
    options: Mapping[str, Any] | None = None,
    *,
    closed: bool = False,
) -> Grammar:
    """A grammar of a JSON schema or its text. closed: see `disable_additional_properties` above."""
    value: Any = schema
    try:
        if isinstance(schema, str):
            value = json.loads(schema)
        if isinstance(value, Mapping) and _OPTIONS in value:
            raise RequestError(f"{param} may not have {_OPTIONS}", param=param)
        if closed:
            value = _without_others(value)
        if options:
            value = {**({} if value is True else value), _OPTIONS: options}
        return Grammar("json_schema", json.dumps(value, allow_nan=False), param)
    except (ValueError, TypeError) as error:
        raise RequestError(f"{param} is not JSON: {error}", param=param) from None
    except RecursionError:
        raise RequestError(f"{param} is nested too deeply", param=param) from None


def _without_others(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_others(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    inner = {key: _without_others(value) for key, value in schema.items()}
    speaks = ("additionalProperties", "unevaluatedProperties", "patternProperties")
    if isinstance(schema.get("properties"), Mapping) and not any(name in schema for name in speaks):
        inner["additionalProperties"] = False
    return inner


def _text(value: object, param: str) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise RequestError(f"{param} must be a non-empty text without NUL", param=param)
    return value
