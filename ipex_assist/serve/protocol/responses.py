"""Bodies and answers of /v1/responses: text and calls of functions, in and out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from ipex_assist.serve.protocol.chat import ChatCompletionTokenLogprob
from ipex_assist.serve.protocol.common import (
    BoundedList,
    MaxTokens,
    OptionField,
    RequestBody,
    ResponseBody,
    SamplingFields,
    TextOrList,
    TextPart,
    TimedResponse,
    ToolList,
    Unsupported,
    text_or_list,
)
from ipex_assist.serve.protocol.structured import JsonObject, TextFormat
from ipex_assist.serve.protocol.tools import STRICT, Name

MOST_METADATA = 16  # pairs, as with OpenAI


def _few(value: Any) -> Any:
    """Before any of them is looked at."""
    if isinstance(value, dict) and len(value) > MOST_METADATA:
        raise ValueError(f"has {len(value):,} pairs, and may have {MOST_METADATA}")
    return value


Metadata = Annotated[dict[str, str], Field(max_length=MOST_METADATA), BeforeValidator(_few)]


class InputText(TextPart):
    """A piece of a message, or of an earlier answer."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class InputMessage(RequestBody):
    """A turn of the conversation, or an answer's output item as it came."""

    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: TextOrList[InputText]

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it."""
        content = self.content
        if isinstance(content, list):
            content = "\n".join(part.text for part in content)
        return {"role": "system" if self.role == "developer" else self.role, "content": content}


class InputCall(RequestBody):
    """A call of an earlier answer, as it came. arguments: a text, JSON if all is well."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it."""
        function = {"name": self.name, "arguments": self.arguments}
        call = {"id": self.call_id, "type": "function", "function": function}
        return {"role": "assistant", "content": "", "tool_calls": [call]}


class InputCallOutput(RequestBody):
    """What came of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: TextOrList[InputText]

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it."""
        output = self.output if isinstance(self.output, str) else "\n".join(part.text for part in self.output)
        return {"role": "tool", "content": output, "tool_call_id": self.call_id}


def _kind(item: Any) -> str:
    """Of an input item; one without is a message."""
    return str((item.get("type") if isinstance(item, dict) else getattr(item, "type", None)) or "message")


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[InputCall, Tag("function_call")]
    | Annotated[InputCallOutput, Tag("function_call_output")],
    Discriminator(_kind),
]


_Items = Annotated[BoundedList[InputItem], Field(min_length=1), Tag("[list]")]
Input = Annotated[Annotated[str, Tag("str")] | _Items, Discriminator(text_or_list)]


class FlatTool(RequestBody):
    """A function that the model may call. parameters: a JSON schema of an object."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(None, description=STRICT)

    def for_template(self) -> dict[str, Any]:
        """As /v1/chat/completions has it."""
        return {"type": "function", "function": self.model_dump(exclude={"type"}, exclude_none=True)}


class FlatToolName(RequestBody):
    """The tool that must be called."""

    type: Literal["function"]
    name: Name


class FlatSchema(RequestBody):
    """JSON by a schema."""

    type: Literal["json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class TextConfig(RequestBody):
    """What the text must follow."""

    format: Annotated[TextFormat | JsonObject | FlatSchema, Field(discriminator="type")] | None = None


class ResponsesRequest(SamplingFields):
    """A text or the messages of a conversation, continuing a stored response if its id is given."""

    input: Input
    model: str | None = None
    instructions: str | None = Field(None, description="the system's turn; not kept for the next answer")
    previous_response_id: str | None = None
    store: bool | None = Field(None, description="keep the answer, so that others can follow it (default: true)")
    max_output_tokens: MaxTokens | None = None
    stream: bool | None = None
    text: TextConfig | None = None
    include: BoundedList[Literal["message.output_text.logprobs"]] | None = None
    top_logprobs: Annotated[int, OptionField("logprobs")] | None = None
    metadata: Metadata | None = None
    tools: ToolList[FlatTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatToolName | None = None
    parallel_tool_calls: bool | None = None
    background: Annotated[Any, Unsupported("answers are not made in the background: stream them", False)] = None
    conversation: Annotated[Any, Unsupported("conversations are not kept: use previous_response_id")] = None

    @property
    def wanted_logprobs(self) -> int | None:
        """As GenerationOptions has it."""
        return (self.top_logprobs or 0) if self.include or self.top_logprobs is not None else None

    def messages(self) -> list[dict[str, Any]]:
        """The input as chat templates read it: calls belong to the turn in which they were made."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        messages: list[dict[str, Any]] = []
        for item in self.input:
            message = item.for_template()
            if isinstance(item, InputCall) and messages and messages[-1]["role"] == "assistant":
                messages[-1].setdefault("tool_calls", []).extend(message["tool_calls"])
            else:
                messages.append(message)
        return messages

    def choice_of_tools(self) -> str | dict[str, Any] | None:
        """As /v1/chat/completions has it."""
        if isinstance(self.tool_choice, FlatToolName):
            return {"type": "function", "function": {"name": self.tool_choice.name}}
        return self.tool_choice


class OutputText(ResponseBody):
    """The text."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any]
    logprobs: list[ChatCompletionTokenLogprob]


class OutputMessage(ResponseBody):
    """The model's turn."""

    type: Literal["message"] = "message"
    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class ReasoningText(ResponseBody):
    """A piece of what the model thought."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class OutputReasoning(ResponseBody):
    """What the model thought. summary: empty, as nothing is left out of the content."""

    type: Literal["reasoning"] = "reasoning"
    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    summary: list[Any]
    content: list[ReasoningText]


class OutputCall(ResponseBody):
    """A call of a function. call_id: by which what comes of it is given back."""

    type: Literal["function_call"] = "function_call"
    id: str
    call_id: str
    name: str
    arguments: str
    status: Literal["in_progress", "completed", "incomplete"]


class InputDetails(ResponseBody):
    """Of the tokens read."""

    cached_tokens: int = 0


class OutputDetails(ResponseBody):
    """Of the tokens written."""

    reasoning_tokens: int = 0


class ResponseUsage(ResponseBody):
    """Tokens that were read and written."""

    input_tokens: int
    input_tokens_details: InputDetails = InputDetails()
    output_tokens: int
    output_tokens_details: OutputDetails = OutputDetails()
    total_tokens: int


class ResponseError(ResponseBody):
    """Why there is no answer."""

    code: str
    message: str


class Incomplete(ResponseBody):
    """Why the answer breaks off."""

    reason: Literal["max_output_tokens"]


class ModelResponse(TimedResponse):
    """An answer as a whole, with what it was asked."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["completed", "incomplete"]
    model: str
    output: list[OutputReasoning | OutputMessage | OutputCall]
    usage: ResponseUsage
    text: dict[str, Any]
    tools: list[Any]
    error: ResponseError | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool = True
    store: bool = True
    temperature: float | None = None
    tool_choice: str | dict[str, str] = "auto"
    top_p: float | None = None
    truncation: Literal["disabled"] = "disabled"


class Deleted(ResponseBody):
    """That an answer is kept no longer."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True
