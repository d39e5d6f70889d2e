"""Bodies and answers of /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ipex_assist.serve.protocol.common import (
    BoundedList,
    Count,
    MaxTokens,
    OptionField,
    ResponseBody,
    StreamOptions,
    TimedResponse,
    TokenList,
    Unsupported,
    Usage,
)
from ipex_assist.serve.protocol.structured import GenerationFields

DEFAULT_TOKENS = 16  # OpenAI's

Tokens = Annotated[TokenList, Field(min_length=1)]
Prompt = (
    Annotated[str, Field(min_length=1)]
    | Tokens
    | Annotated[BoundedList[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=128)]
    | Annotated[BoundedList[Tokens], Field(min_length=1, max_length=128)]
)


class CompletionRequest(GenerationFields):
    """A text, or several, to go on with; as a text or as token ids."""

    prompt: Prompt
    model: str | None = None
    max_tokens: MaxTokens | None = Field(None, description=f"(default: {DEFAULT_TOKENS})")
    n: Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: Annotated[int, OptionField("logprobs")] | None = None
    draft_details: bool | None = Field(None, description="streamed choices say which pieces of text were drafted")
    add_special_tokens: bool | None = Field(None, description="before a text, such as its beginning (default: true)")
    best_of: Annotated[Any, Unsupported("best_of is not offered: ask for n texts by n")] = None
    echo: bool | None = Field(None, description="the prompt before the text; with logprobs, its tokens', too")
    suffix: Annotated[
        Any, Unsupported("models here write on from a prompt; what shall follow the text cannot be given", "")
    ] = None

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """Each of the prompts, of which one alone is a list of one."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if isinstance(prompt[0], int):
            return [prompt]  # type: ignore[list-item]
        return prompt  # type: ignore[return-value]


class CompletionLogprobs(ResponseBody):
    """Lists side by side, an entry a token; a prompt's first has no probability. text_offset: where it begins, in
    characters of the text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(ResponseBody):
    """One text; those of the first prompt come first."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Literal["stop", "length"]


class Completion(TimedResponse):
    """The texts as a whole."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str
