"""From the bytes of a request body to one checked object, or a RequestError that names the field.

A field is in one of three classes: a body's own fields work; `ACCEPTED` ones have no effect on the answer and may be
given; the rest is refused by name, `refused` ones as not supported and all others as unknown. null means left out.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from legato.core.errors import RequestError

__all__ = ["Accepted", "Body", "parse_body", "unknown_field"]

MAX_PATH = 256  # characters of a field's name in an error
_SHOULD_BE = {  # by pydantic's type of the error: all that the annotations of bodies can give
    "string_type": "a string",
    "bool_type": "true or false",
    "int_type": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
}


class Body(BaseModel):
    """Base of all request bodies: strict types (true is no integer, "1" no number), no NaN, no unknown field."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True, protected_namespaces=())


class Accepted(Body):
    """Fields that have no effect on the answer. Their types are checked all the same."""

    user: str | None = None
    metadata: dict[str, str] | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    spaces_between_special_tokens: bool | None = None  # there are none but those that tokens themselves hold


_B = TypeVar("_B", bound=Body)


def parse_body(
    kind: type[_B], data: bytes, refused: Mapping[str, tuple[object, ...]], ignored: list[str] | None = None
) -> _B:
    """Parse and check a body. `refused` maps field names to the values that ask for nothing and so are accepted.

    ignored: gets the names of unknown fields, which are then left out; None: they are errors.
    """
    fields = _json_object(data)
    known: dict[str, Any] = {}
    for name, value in fields.items():
        if name in kind.model_fields:
            if value is not None:
                known[name] = value
        elif name not in refused:
            unknown_field(name, ignored)
        elif value is not None and not any(type(value) is type(v) and value == v for v in refused[name]):
            raise RequestError(f"{name} is not supported", param=name, code="unsupported_parameter")
    try:
        return kind.model_validate(known)
    except ValidationError as error:
        if ignored is None or not _forget_unknown(known, error, ignored):
            raise _request_error(error, kind, known) from None
    try:
        return kind.model_validate(known)
    except ValidationError as error:
        raise _request_error(error, kind, known) from None


def unknown_field(name: str, ignored: list[str] | None, where: str = "") -> None:
    """Note an unknown field of the body, or of the object at `where` in it; RequestError where `ignored` is None."""
    shown = f"{where}.{_short(name)}" if where else _short(name)
    if ignored is None:
        raise RequestError(f"unknown field: {shown}", param=shown, code="unknown_parameter")
    ignored.append(shown)


def _forget_unknown(known: dict[str, Any], error: ValidationError, ignored: list[str]) -> bool:
    """Take the unknown fields of inner objects out of `known`; whether there were any."""
    found = [
        each["loc"]
        for each in error.errors(include_url=False, include_context=False, include_input=False)
        if each["type"] == "extra_forbidden"
    ]
    for *path, last in found:
        inner: Any = known
        for part in path:
            inner = inner[part]
        del inner[last]
        ignored.append(_path((*path, last)))
    return bool(found)


def _json_object(data: bytes) -> dict[str, Any]:
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object", code="invalid_json")
    return value


def _request_error(error: ValidationError, kind: type[Body], known: Mapping[str, Any]) -> RequestError:
    """The first finding of those furthest inside, in one line: where, and what it should be, by each type it may have.

    Never the value itself, which may be huge or private.
    """
    found = error.errors(include_url=False, include_context=False, include_input=False)
    fields = [_field(each["loc"], known, missing=each["type"] == "missing") for each in found]
    field = max(fields, key=len)  # the first of them
    first, where = found[fields.index(field)], _path(field)
    if first["type"] == "extra_forbidden":
        return RequestError(f"unknown field: {where}", param=where, code="unknown_parameter")
    if first["type"] == "missing":
        return RequestError(f"{where} is required", param=where, code="missing_required_parameter")
    here = (_should_be(each["type"], kind, field) for each, other in zip(found, fields, strict=True) if other == field)
    return RequestError(f"{where} should be {' or '.join(dict.fromkeys(here))}", param=where, code="invalid_type")


def _should_be(fault: str, kind: type[Body], field: Sequence[str | int]) -> str:
    """What a value should be, in JSON's words. fault: pydantic's type of the error."""
    allowed = [json.dumps(value, ensure_ascii=False) for value in _literals(kind, field)]
    if fault != "literal_error" or not allowed:  # none: an object has the name of a type for a key
        return _SHOULD_BE.get(fault, "another value")
    *others, last = allowed
    return f"{', '.join(others)} or {last}" if others else last


def _literals(annotation: Any, path: Sequence[str | int]) -> Iterator[str | int | None]:
    """The values that an annotation's Literals allow at `path` in what it describes."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        for each in arguments:
            yield from _literals(each, path)
    elif origin is Literal and not path:
        yield from arguments
    elif origin in (list, dict) and path:
        yield from _literals(arguments[-1], path[1:])
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel) and path:
        for name, field in annotation.model_fields.items():
            if (field.alias or name) == path[0]:
                yield from _literals(field.annotation, path[1:])


def _field(location: Sequence[str | int], known: Any, *, missing: bool) -> list[str | int]:
    """A location as pydantic gives it, without the types that were tried there: only what lies in the body.

    missing: the last part is what should lie there.
    """
    inner: Any = known
    field: list[str | int] = []
    for part in location[:-1] if missing else location:
        if (isinstance(inner, dict) and part in inner) or (isinstance(inner, list) and isinstance(part, int)):
            inner = inner[part]  # type: ignore[index]
            field.append(part)
    return [*field, location[-1]] if missing else field


def _path(parts: Sequence[str | int]) -> str:
    """As OpenAI writes it: `messages[0].content`."""
    steps = (f"[{part}]" if isinstance(part, int) else f".{_short(part)}" for part in parts)
    return _short("".join(steps).removeprefix("."), MAX_PATH)


def _short(name: str, limit: int = 64) -> str:
    shown = name if len(name) <= limit else name[:limit] + "..."
    return shown if shown.isprintable() else repr(shown)
