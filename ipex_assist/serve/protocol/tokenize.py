"""Bodies and answers of /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from ipex_assist.serve.protocol.chat import Message
from ipex_assist.serve.protocol.common import BoundedList, RequestBody, ResponseBody, TokenList, ToolList
from ipex_assist.serve.protocol.tools import Tool


class TokenizeText(RequestBody):
    """A text."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = Field(None, description="such as a beginning of the text (default: true)")
    return_token_strs: bool | None = None


class TokenizeMessages(RequestBody):
    """A conversation, to be put into the model's chat template as /v1/chat/completions does."""

    messages: Annotated[BoundedList[Message], Field(min_length=1)]
    tools: ToolList[Tool] | None = None
    model: str | None = None
    return_token_strs: bool | None = None


def _form(body: Any) -> str:
    """Of a request, so that errors are those of one form."""
    messages = "messages" in body and "prompt" not in body if isinstance(body, dict) else hasattr(body, "messages")
    return "Messages" if messages else "Text"


TokenizeRequest = Annotated[
    Annotated[TokenizeText, Tag("Text")] | Annotated[TokenizeMessages, Tag("Messages")], Discriminator(_form)
]


class TokenizeResponse(ResponseBody):
    """The token ids."""

    tokens: list[int]
    count: int
    max_model_len: int | None
    token_strs: list[str] | None = None


class DetokenizeRequest(RequestBody):
    """Token ids."""

    tokens: TokenList
    model: str | None = None


class DetokenizeResponse(ResponseBody):
    """Their text, special tokens among it."""

    prompt: str
