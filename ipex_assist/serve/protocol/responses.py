"""Bodies and answers of /v1/responses: text and calls of functions, in and out."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from ipex_assist.serve.protocol.chat import ChatCompletionTokenLogprob
from ipex_assist.serve.protocol.common import (
    BoundedList,
    MaxTokens,
    OptionField,
    OtherPart,
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
from ipex_assist.serve.protocol.images import InputImage, for_template, text_or_image, texts_and_images
from ipex_assist.serve.protocol.structured import JsonObject, TextFormat
from ipex_assist.serve.protocol.thinking import ThinkingFields
from ipex_assist.serve.protocol.tools import STRICT, Name

LOGPROBS = "message.output_text.logprobs"
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


InputPart = Annotated[
    Annotated[InputText, Tag("[text]")] | Annotated[InputImage, Tag("[image]")], text_or_image("input_image")
]


ResultPart = Annotated[
    Annotated[InputText, Tag("[text]")] | Annotated[InputImage, Tag("[image]")] | Annotated[OtherPart, Tag("[other]")],
    text_or_image("input_image"),
]


class InputMessage(RequestBody):
    """A turn of the conversation, or an answer's output item as it came."""

    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: TextOrList[InputPart]

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": for_template(self.content)}


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


class InputCustomCall(RequestBody):
    """A call of a tool that takes any text, as it came from another server."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it."""
        arguments = json.dumps({"input": self.input}, ensure_ascii=False)
        call = InputCall(type="function_call", call_id=self.call_id, name=self.name, arguments=arguments)
        return call.for_template()


class ReasoningPart(RequestBody):
    """A piece of what the model thought."""

    text: str = ""


class InputReasoning(RequestBody):
    """What the model thought before an earlier answer, as it came; encrypted thoughts of other servers say nothing."""

    type: Literal["reasoning"]
    content: BoundedList[ReasoningPart] | None = None
    summary: BoundedList[ReasoningPart] | None = None

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it; the answer follows."""
        thought = "\n".join(part.text for part in self.content or self.summary or ())
        return {"role": "assistant", "content": "", "reasoning_content": thought}


class InputCallOutput(RequestBody):
    """What came of a call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: Annotated[TextOrList[ResultPart], BeforeValidator(texts_and_images)]

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it."""
        return {"role": "tool", "content": for_template(self.output), "tool_call_id": self.call_id}


def _kind(item: Any) -> str:
    """Of an input item; one without is a message."""
    return str((item.get("type") if isinstance(item, dict) else getattr(item, "type", None)) or "message")


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[InputCall, Tag("function_call")]
    | Annotated[InputCallOutput, Tag("function_call_output")]
    | Annotated[InputCustomCall, Tag("custom_tool_call")]
    | Annotated[InputCallOutput, Tag("custom_tool_call_output")]
    | Annotated[InputReasoning, Tag("reasoning")],
    Discriminator(_kind),
]


_Items = Annotated[BoundedList[InputItem], Field(min_length=1), Tag("[list]")]
Input = Annotated[Annotated[str, Tag("str")] | _Items, Discriminator(text_or_list)]


def _kind_of_tool(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return "[foreign]" if isinstance(kind, str) and kind != "function" else "function"


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


class ForeignTool(RequestBody):
    """A tool of another kind (web_search, namespace, custom, …), of which the model is not told."""

    type: str


class FlatToolName(RequestBody):
    """The tool that must be called."""

    type: Literal["function"]
    name: Name


AnyTool = Annotated[
    Annotated[FlatTool, Tag("function")] | Annotated[ForeignTool, Tag("[foreign]")], Discriminator(_kind_of_tool)
]


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


class Reasoning(RequestBody):
    """How much to think, as reasoning_effort of chats."""

    effort: str | None = None


class ResponsesRequest(ThinkingFields, SamplingFields):
    """A text or the messages of a conversation, continuing a stored response if its id is given."""

    input: Input
    model: str | None = None
    instructions: str | None = Field(None, description="the system's turn; not kept for the next answer")
    previous_response_id: str | None = None
    store: bool | None = Field(None, description="keep the answer, so that others can follow it (default: true)")
    max_output_tokens: MaxTokens | None = None
    stream: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    include: BoundedList[str] | None = Field(
        None, description="message.output_text.logprobs; there is nothing else to include, and it is left out"
    )
    top_logprobs: Annotated[int, OptionField("logprobs")] | None = None
    metadata: Metadata | None = None
    tools: ToolList[AnyTool] | None = Field(None, description="functions; tools of other kinds are left out")
    tool_choice: Literal["none", "auto", "required"] | FlatToolName | None = None
    parallel_tool_calls: bool | None = None
    background: Annotated[Any, Unsupported("answers are not made in the background: stream them", False)] = None
    conversation: Annotated[Any, Unsupported("conversations are not kept: use previous_response_id")] = None
    max_tool_calls: Annotated[Any, Unsupported("tools are called by the client alone")] = None
    moderation: Annotated[Any, Unsupported("nothing is moderated here")] = None
    prompt: Annotated[Any, Unsupported("prompts are not kept: give input and instructions")] = None

    @property
    def wanted_logprobs(self) -> int | None:
        """As GenerationOptions has it."""
        included = LOGPROBS in (self.include or ())
        return (self.top_logprobs or 0) if included or self.top_logprobs is not None else None

    @property
    def template_variables(self) -> dict[str, Any]:
        """Those of the chat template."""
        effort = self.reasoning.effort if self.reasoning is not None else None
        if effort is None:
            return super().template_variables
        return self.model_copy(update={"reasoning": None, "reasoning_effort": effort}).template_variables

    @property
    def functions(self) -> list[FlatTool]:
        """The tools that the model is told of."""
        return [tool for tool in self.tools or () if isinstance(tool, FlatTool)]

    def messages(self) -> list[dict[str, Any]]:
        """The input as chat templates read it: calls belong to the turn in which they were made."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        messages: list[dict[str, Any]] = []
        for item in self.input:
            message = item.for_template()
            last = messages[-1] if messages and messages[-1]["role"] == "assistant" else {}
            if last and isinstance(item, (InputCall, InputCustomCall)):
                last.setdefault("tool_calls", []).extend(message["tool_calls"])
            elif last.keys() == {"role", "content", "reasoning_content"} and message["role"] == "assistant":
                last.update({name: value for name, value in message.items() if value})
            elif message != {"role": "assistant", "content": "", "reasoning_content": ""}:
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
