"""response_format and structured_outputs: from a body to a grammar."""

from typing import Any, Literal

from pydantic import Field

from legato.core.errors import RequestError
from legato.core.grammar import Grammar, StructuredOutputsParams, json_grammar
from legato.protocol.parse import Body

__all__ = ["ResponseFormat", "StructuredOutputs", "grammar_of"]


class JsonSchema(Body):
    """OpenAI's wrapper of a schema. `strict` changes nothing: every answer fits the schema."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """What the text of an answer looks like, in OpenAI's words."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def grammar(self) -> Grammar | None:
        """RequestError: no schema where one is needed, or one where none is."""
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise RequestError(
                "response_format.json_schema goes with type json_schema", param="response_format.json_schema"
            )
        if self.json_schema is None:
            return Grammar("json_object", param="response_format") if self.type == "json_object" else None
        schema = self.json_schema.schema_
        if schema is None:
            raise RequestError(
                "response_format.json_schema.schema is required", param="response_format.json_schema.schema"
            )
        return json_grammar(schema, "response_format.json_schema.schema")


class StructuredOutputs(Body):
    """The same in vLLM's words."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None

    def params(self) -> StructuredOutputsParams:
        return StructuredOutputsParams(**self.model_dump(by_alias=True, exclude_none=True))


def grammar_of(response_format: ResponseFormat | None, structured: StructuredOutputs | None) -> Grammar | None:
    """The grammar that a body asks for. RequestError names the field that is wrong."""
    grammar = None if response_format is None else response_format.grammar()
    if structured is None:
        return grammar
    if grammar is not None:
        raise RequestError("structured_outputs and response_format may not both be set", param="structured_outputs")
    return structured.params().to_grammar()
