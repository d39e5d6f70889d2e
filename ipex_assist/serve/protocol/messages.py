"""Bodies and answers of /v1/messages, Anthropic's API: blocks of text, thinking, calls of tools and their results."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from ipex_assist.serve.protocol.common import (
    MOST_STOPS,
    AdapterScales,
    BoundedList,
    MaxTokens,
    OptionField,
    OtherPart,
    RequestBody,
    ResponseBody,
    SamplingFields,
    TextPart,
    TimedResponse,
    ToolList,
    Unsupported,
    text_or_list,
    with_one_system,
)
from ipex_assist.serve.protocol.images import ImageBlock, for_template, text_or_image, texts_and_images
from ipex_assist.serve.protocol.images import joined as both
from ipex_assist.serve.protocol.thinking import thinking_variables

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
HIGHEST_TEMPERATURE = 1.0  # of Anthropic's API
MOST_BLOCKS = 512  # of a message, or of what came of a call
LEAST_THINKING = 1024  # tokens, as with Anthropic
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_-]+$")]


T = TypeVar("T")
# A text or a few blocks; errors are those of the form that was sent.
_Blocks = Annotated[list[T], Field(fail_fast=True, max_length=MOST_BLOCKS), Tag("[list]")]
TextOrBlocks = Annotated[Annotated[str, Tag("str")] | _Blocks[T], Discriminator(text_or_list)]


def _visible(text: str) -> str:
    if not text.strip():
        raise ValueError("must have a character that is no white space")
    return text


StopText = Annotated[str, AfterValidator(_visible)]


class TextBlock(TextPart):
    """Text of a message."""

    type: Literal["text"]
    text: str


class ThinkingBlock(RequestBody):
    """What the model thought in an earlier answer, as it came."""

    type: Literal["thinking"]
    thinking: str


class RedactedThinking(RequestBody):
    """Thoughts of another server that nobody can read here: they are left out."""

    type: Literal["redacted_thinking"]


class ToolUse(RequestBody):
    """A call of an earlier answer, as it came."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it."""
        arguments = json.dumps(self.input, ensure_ascii=False)
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


ResultBlock = Annotated[
    Annotated[TextBlock, Tag("[text]")] | Annotated[ImageBlock, Tag("[image]")] | Annotated[OtherPart, Tag("[other]")],
    text_or_image("image"),
]


class ToolResult(RequestBody):
    """What came of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[TextOrBlocks[ResultBlock] | None, BeforeValidator(texts_and_images)] = None
    is_error: bool | None = None

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it."""
        return {"role": "tool", "content": for_template(self.content), "tool_call_id": self.tool_use_id}


_BLOCKS = ("image", "thinking", "redacted_thinking", "tool_use", "tool_result")


def _kind(block: Any) -> str:
    """Of a block; all that is not known is read as text, which says what is wrong."""
    kind = block.get("type") if isinstance(block, dict) else getattr(block, "type", None)
    return kind if kind in _BLOCKS else "text"


Block = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ImageBlock, Tag("image")]
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[RedactedThinking, Tag("redacted_thinking")]
    | Annotated[ToolUse, Tag("tool_use")]
    | Annotated[ToolResult, Tag("tool_result")],
    Discriminator(_kind),
]


def joined(content: str | list[TextBlock] | None) -> str:
    """A text, or those of its blocks, by lines."""
    return "\n".join(block.text for block in content) if isinstance(content, list) else content or ""


class InputTurn(RequestBody):
    """A turn of the conversation. What a system says at any place belongs to the system's turn at the beginning."""

    role: Literal["user", "assistant", "system"]
    content: TextOrBlocks[Block]

    @property
    def blocks(self) -> list[Any]:
        """Its blocks, also where it came as a text."""
        return [TextBlock(type="text", text=self.content)] if isinstance(self.content, str) else self.content

    @property
    def texts(self) -> list[str]:
        """Those of its blocks."""
        return [block.text for block in self.blocks if isinstance(block, TextBlock)]

    def for_template(self) -> list[dict[str, Any]]:
        """As chat templates read it: results of tools are messages of their own, before the text beside them."""
        results = [block.for_template() for block in self.blocks if isinstance(block, ToolResult)]
        calls = [block.for_template() for block in self.blocks if isinstance(block, ToolUse)]
        thoughts = "".join(block.thinking for block in self.blocks if isinstance(block, ThinkingBlock))
        texts = self.texts
        said = [block for block in self.blocks if isinstance(block, (TextBlock, ImageBlock))]
        if self.role == "assistant":
            message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
            more = {"reasoning_content": thoughts, "tool_calls": calls}
            return [*results, message | {name: value for name, value in more.items() if value}]
        return [*results, {"role": "user", "content": for_template(said)}] if said or not results else results


class MessageTool(RequestBody):
    """A tool that the model may call. input_schema: a JSON schema of an object."""

    type: Literal["custom"] | None = None
    name: Name
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_ours(cls, value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind != "custom":
            raise ValueError(
                f"{kind[:60]} is a tool that Anthropic's own servers know: this one knows tools with a name and an "
                "input_schema alone"
            )
        return value

    def for_template(self) -> dict[str, Any]:
        """As /v1/chat/completions has it."""
        function = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": {**function, "strict": self.strict}}


class MessageToolChoice(RequestBody):
    """Whether a tool must be called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _named(self) -> MessageToolChoice:
        if self.type == "tool" and self.name is None:
            raise ValueError("a choice of the type tool needs the tool's name")
        return self

    def for_template(self) -> str | dict[str, Any]:
        """As /v1/chat/completions has it."""
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name}}
        return "required" if self.type == "any" else self.type


class Thinking(RequestBody):
    """Whether the model thinks before it answers, where its chat template has that: unless it is disabled. All other
    types are left to the template. budget_tokens: of its thought at most, the end of which is forced then. display:
    omitted leaves the text of thoughts out of the answer."""

    type: str
    budget_tokens: Annotated[int, Field(ge=LEAST_THINKING)] | None = None
    display: str | None = None


class OutputFormat(RequestBody):
    """JSON by a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestBody):
    """How the answer is made. effort: a variable of the chat template, as reasoning_effort of OpenAI's API."""

    format: OutputFormat | None = None
    effort: str | None = None


class CountTokens(RequestBody):
    """A conversation whose tokens are counted."""

    messages: Annotated[BoundedList[InputTurn], Field(min_length=1)]
    model: str | None = None
    lora: AdapterScales | None = None
    system: TextOrBlocks[TextBlock] | None = None
    tools: ToolList[MessageTool] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = Field(None, description="output_config.format by its earlier name")
    mcp_servers: Annotated[Any, Unsupported("tools are called by the client alone", [])] = None
    container: Annotated[Any, Unsupported("nothing is run here: tools are called by the client alone")] = None
    compaction: Annotated[Any, Unsupported("conversations are compacted by the client")] = None
    thread: Annotated[Any, Unsupported("conversations are not kept: send all messages")] = None

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        """The JSON schema of the answer."""
        given = (self.output_config and self.output_config.format) or self.output_format
        return given.schema_ if given else None

    def for_template(self) -> list[dict[str, Any]]:
        """The conversation as chat templates read it: texts that one side says in a row are one message."""
        made = [{"role": "system", "content": joined(self.system)}] if self.system else []
        for turn in self.messages:
            if turn.role == "system":
                made.append({"role": "system", "content": "\n".join(turn.texts)})
        made = with_one_system(made)
        for turn in self.messages:
            if turn.role == "system":
                continue
            for message in turn.for_template():
                if made and message.keys() == made[-1].keys() == {"role", "content"} and _same_side(message, made[-1]):
                    made[-1] = {**made[-1], "content": both(made[-1]["content"], message["content"])}
                else:
                    made.append(message)
        return made

    @property
    def variables(self) -> dict[str, Any]:
        """Those of the chat template: without `thinking` a model does not think, as with Anthropic."""
        thinks = self.thinking is not None and self.thinking.type != "disabled"
        effort = self.output_config.effort if thinks and self.output_config is not None else None
        return thinking_variables(thinks, effort)

    @property
    def shows_thoughts(self) -> bool:
        """Whether the answer has the text of thoughts."""
        return self.thinking is None or self.thinking.display != "omitted"

    @property
    def parallel(self) -> bool:
        """Whether an answer may call several tools."""
        return self.tool_choice is None or not self.tool_choice.disable_parallel_tool_use


def _same_side(message: dict[str, Any], before: dict[str, Any]) -> bool:
    return bool(message["role"] == before["role"] and message["role"] != "system")


class MessagesRequest(CountTokens):
    """A conversation, to be answered."""

    max_tokens: MaxTokens
    stream: bool | None = None
    stop_sequences: Annotated[BoundedList[StopText], Field(max_length=MOST_STOPS)] | None = None
    temperature: Annotated[float, OptionField("temperature", highest=HIGHEST_TEMPERATURE)] | None = None
    top_p: Annotated[float, OptionField("top_p")] | None = None
    top_k: Annotated[int, OptionField("top_k")] | None = None
    service_tier: str | None = None
    assisted: Annotated[bool, OptionField("assisted")] | None = None

    def sampling(self) -> SamplingFields:
        """How tokens are chosen, and where the text ends, by OpenAI's names."""
        names = ("temperature", "top_p", "top_k", "service_tier", "assisted")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return SamplingFields(**given, stop=tuple(self.stop_sequences or ()) or None)


class AnswerText(ResponseBody):
    """Text of an answer."""

    type: Literal["text"] = "text"
    text: str


class AnswerThinking(ResponseBody):
    """What the model thought. signature: empty, as nothing has to be proved to this server."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str


class AnswerToolUse(ResponseBody):
    """A call of a tool."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


class ThoughtDetails(ResponseBody):
    """Of the tokens written."""

    thinking_tokens: int


class MessageUsage(ResponseBody):
    """Tokens that were read, that the prefix cache had, and that were written."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int
    output_tokens_details: ThoughtDetails | None = None


class AnsweredMessage(TimedResponse):
    """An answer as a whole."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerText | AnswerThinking | AnswerToolUse]
    stop_reason: StopReason
    stop_sequence: str | None
    usage: MessageUsage


class CountedTokens(ResponseBody):
    """How many tokens the prompt has."""

    input_tokens: int
