"""Structured output as requests ask for it: OpenAI's response_format, and vLLM's fields beyond it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ipex_assist.serve.protocol.common import BoundedList, RequestBody, SamplingFields, Unsupported
from ipex_assist.serve.protocol.unoffered import UnofferedFields


class TextFormat(RequestBody):
    """Any text."""

    type: Literal["text"]


class JsonObject(RequestBody):
    """A JSON object; by a schema, as llama-server has it, if there is one."""

    type: Literal["json_object"]
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class NamedSchema(RequestBody):
    """A JSON schema with its name."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class JsonSchema(RequestBody):
    """JSON by a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | JsonObject | JsonSchema, Field(discriminator="type")]


class StructuredOutputs(RequestBody):
    """vLLM's newer form of what a text must follow; one of them."""

    json_: Any = Field(None, alias="json", description="a JSON schema")
    json_object: bool | None = None
    regex: str | None = None
    choice: BoundedList[str] | None = None
    grammar: str | None = None
    structural_tag: Annotated[Any, Unsupported("there are json, json_object, regex, choice and grammar")] = None
    whitespace_pattern: Annotated[Any, Unsupported("spaces in JSON are not chosen by a pattern")] = None


class GenerationFields(UnofferedFields, SamplingFields):
    """Fields of every request for texts. Of those that say what a text must follow, one may be given."""

    response_format: ResponseFormat | None = None
    guided_json: Any = Field(None, description="a JSON schema, as an object or a text")
    guided_regex: str | None = None
    guided_choice: BoundedList[str] | None = None
    guided_grammar: str | None = Field(None, description="in llguidance's dialect of Lark")
    structured_outputs: StructuredOutputs | None = None
    json_schema: dict[str, Any] | None = Field(None, description="a JSON schema, as llama-server has it")

    def grammar_fields(self) -> dict[str, Any]:
        """These fields as `structured.grammar_of` reads them."""
        own = set(GenerationFields.__annotations__)
        return self.model_dump(include=own, exclude_none=True, by_alias=True)
