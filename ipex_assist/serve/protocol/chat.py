"""Bodies and answers of /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag, model_validator

from ipex_assist.serve.protocol.common import (
    BoundedList,
    Count,
    MaxTokens,
    OptionField,
    RequestBody,
    ResponseBody,
    StreamOptions,
    TextOrList,
    TextPart,
    TimedResponse,
    ToolList,
    Unsupported,
    Usage,
)
from ipex_assist.serve.protocol.images import ImageUrlPart, for_template, text_or_image, texts_and_images
from ipex_assist.serve.protocol.structured import GenerationFields
from ipex_assist.serve.protocol.thinking import ThinkingFields
from ipex_assist.serve.protocol.tools import AnswerToolCall, Tool, ToolCall, ToolChoice
from ipex_assist.serve.protocol.unoffered import UnofferedChatFields

FinishReason = Literal["stop", "length", "tool_calls"]


class ContentPart(TextPart):
    """A piece of a message."""

    type: Literal["text"]
    text: str


AnyPart = Annotated[
    Annotated[ContentPart, Tag("[text]")] | Annotated[ImageUrlPart, Tag("[image]")], text_or_image("image_url")
]


def _said(part: Any) -> Any:
    """A part of a turn; what an assistant refused to do it said as a text."""
    refused = part.get("refusal") if isinstance(part, dict) and part.get("type") == "refusal" else None
    return {"type": "text", "text": refused} if isinstance(refused, str) else part


class Message(RequestBody):
    """A turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: TextOrList[AnyPart] | None = None
    name: str | None = None
    tool_calls: ToolList[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = Field(None, description="what the model thought before this turn, as it came")
    reasoning: str | None = Field(None, description="the same, by its other name")

    @model_validator(mode="before")
    @classmethod
    def _results_are_text(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("role") == "tool":
            return {**value, "content": texts_and_images(value.get("content"))}
        if isinstance(value, dict) and isinstance(value.get("content"), list):
            return {**value, "content": [_said(part) for part in value["content"]]}
        return value

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it: texts joined by line ends; a developer is to templates what a system is."""
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": for_template(self.content)}
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump(exclude_none=True) for call in self.tool_calls]
        if self.name is not None:
            message["name"] = self.name
        if thought := self.reasoning_content or self.reasoning:
            message["reasoning_content"] = thought
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


class ChatRequest(ThinkingFields, UnofferedChatFields, GenerationFields):
    """A conversation, to be answered."""

    messages: Annotated[BoundedList[Message], Field(min_length=1)]
    model: str | None = None
    max_completion_tokens: MaxTokens | None = None
    max_tokens: MaxTokens | None = None
    n: Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, OptionField("logprobs")] | None = Field(None, description="means logprobs, too")
    tools: ToolList[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    continue_final_message: bool | None = Field(
        None, description="the assistant's turn at the end is the beginning of the answer"
    )
    add_generation_prompt: bool | None = Field(None, description="false goes with continue_final_message alone")
    draft_details: bool | None = Field(None, description="streamed choices say which pieces of text were drafted")
    functions: Annotated[Any, Unsupported("functions are OpenAI's old form: use tools")] = None
    function_call: Annotated[Any, Unsupported("function_call is OpenAI's old form: use tool_choice")] = None
    audio: Annotated[Any, Unsupported("this server writes text alone")] = None
    modalities: BoundedList[Literal["text"]] | None = None

    def tool_fields(self) -> list[dict[str, Any]]:
        """The tools as they came."""
        return [tool.model_dump(exclude_none=True) for tool in self.tools or ()]

    @property
    def wanted_tokens(self) -> int | None:
        """How long the answer may be; None where nobody said."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        """As GenerationOptions has it: how many likeliest tokens beside each; None for no log-probabilities."""
        wanted = self.top_logprobs is not None if self.logprobs is None else self.logprobs
        return (self.top_logprobs or 0) if wanted else None


class AnswerMessage(ResponseBody):
    """The model's turn."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[AnswerToolCall] | None = None


class TopLogprob(ResponseBody):
    """A likely token, and the natural logarithm of its probability."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatCompletionTokenLogprob(TopLogprob):
    """The token of the text, and the likeliest at its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(ResponseBody):
    """Of each token of the text."""

    content: list[ChatCompletionTokenLogprob] | None
    refusal: None = None


class ChatChoice(ResponseBody):
    """One of n answers."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason


class ChatCompletion(TimedResponse):
    """An answer as a whole."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
