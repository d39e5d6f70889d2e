"""Tools as requests name them, and calls of them as messages have them; OpenAI's forms."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ipex_assist.serve.protocol.common import RequestBody, ResponseBody

STRICT = "calls are held to the schema, also where the model is free to call (default: false)"

Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]


class Function(RequestBody):
    """What a tool can do. parameters: a JSON schema of an object."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(None, description=STRICT)


class Tool(RequestBody):
    """A function that the model may call."""

    type: Literal["function"]
    function: Function


class FunctionName(RequestBody):
    """Of one of the tools."""

    name: Name


class NamedTool(RequestBody):
    """The tool that must be called."""

    type: Literal["function"]
    function: FunctionName


class FunctionCall(RequestBody):
    """A call. arguments: a text, JSON if all is well."""

    name: str
    arguments: str


class ToolCall(RequestBody):
    """A call of an earlier message."""

    id: str | None = None
    type: Literal["function"]
    function: FunctionCall


class CalledFunction(ResponseBody):
    """A call of an answer."""

    name: str
    arguments: str


class AnswerToolCall(ResponseBody):
    """A call of an answer, by its id."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool
