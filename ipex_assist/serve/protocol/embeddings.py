"""Bodies and answers of /v1/embeddings, as OpenAI has them, and of /v1/rerank, as Jina, Cohere and vLLM do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from ipex_assist.serve.protocol.common import RequestBody, ResponseBody, TokenList, Unsupported

MOST_INPUTS = 2048  # texts of one request, as with OpenAI
MOST_DIMENSIONS = 1 << 20

T = TypeVar("T")


def _few(given: Sequence[T]) -> Sequence[T]:
    """Checked here and not by the schema, whose readers make lists of that length of every kind of item."""
    if len(given) > MOST_INPUTS:
        raise PydanticCustomError(
            "too_long",
            "has {actual_length} items, and may have {max_length}",
            {"actual_length": len(given), "max_length": MOST_INPUTS},
        )
    return given


_Text = Annotated[str, Field(min_length=1)]
_Tokens = Annotated[TokenList, Field(min_length=1)]
InputList = Annotated[list[T], Field(fail_fast=True, min_length=1), AfterValidator(_few)]
Input = _Text | _Tokens | InputList[_Text] | InputList[_Tokens]
Cut = Annotated[
    int, Field(ge=-1, le=1 << 30, description="cut texts to so many tokens at their end; -1: to what the model reads")
]


class EmbeddingRequest(RequestBody):
    """Texts, each as a text or as token ids. dimensions, encoding_format: OpenAI's."""

    input: Input
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = Field(None, description="(default: float)")
    dimensions: Annotated[int, Field(ge=1, le=MOST_DIMENSIONS)] | None = Field(
        None, description="the first numbers of a vector, at length 1, where a model is trained for that"
    )
    prompt_name: str | None = Field(
        None, description="which of the model's prompts precedes each text, such as query (default: what its files say)"
    )
    truncate_prompt_tokens: Cut | None = None
    add_special_tokens: Annotated[Any, Unsupported("texts are encoded as the model was trained", True)] = None
    normalize: Annotated[Any, Unsupported("vectors are as the model's files say", True)] = None
    user: str | None = None

    @property
    def inputs(self) -> list[str] | list[list[int]]:
        """Each of the texts, of which one alone is a list of one."""
        given = self.input
        if isinstance(given, str):
            return [given]
        if isinstance(given[0], int):
            return [given]  # type: ignore[list-item]
        return given  # type: ignore[return-value]


class InputUsage(ResponseBody):
    """Tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class Embedding(ResponseBody):
    """A vector: numbers, or base64 of little-endian fp32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(ResponseBody):
    """The vectors, in the order of the texts."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: InputUsage


class RerankDocument(RequestBody):
    """A document as Cohere and Jina have it beside a plain text."""

    text: str


class RerankRequest(RequestBody):
    """A query and documents. instruction: what relevance means, for models that take it (Qwen3-Reranker)."""

    query: _Text
    documents: InputList[str | RerankDocument]
    model: str | None = None
    top_n: Annotated[int, Field(ge=0)] | None = Field(None, description="how many results; 0: all (default: all)")
    return_documents: bool | None = Field(None, description="results have their documents (default: false)")
    instruction: _Text | None = None
    truncate_prompt_tokens: Cut | None = None

    @property
    def texts(self) -> list[str]:
        """The documents."""
        return [each if isinstance(each, str) else each.text for each in self.documents]


class RankedDocument(ResponseBody):
    """The text of a result's document."""

    text: str


class RerankResult(ResponseBody):
    """One document. index: in the request. relevance_score: from 0 to 1, unless the model's config says otherwise."""

    index: int
    relevance_score: float
    document: RankedDocument | None = None


class RerankResponse(ResponseBody):
    """Documents, the most relevant first."""

    id: str
    model: str
    results: list[RerankResult]
    usage: InputUsage
