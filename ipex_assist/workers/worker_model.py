"""What a worker has loaded, and how it begins what it is asked for."""

from __future__ import annotations

from typing import TypeAlias

from ipex_assist.embedding.jobs import EmbeddingJob
from ipex_assist.embedding.model import EmbeddingModel
from ipex_assist.env.errors import UsageError
from ipex_assist.generation.stream import Generation
from ipex_assist.generation.text_model import TextModel
from ipex_assist.workers.wire import EmbedRequest, Request

WorkerModel: TypeAlias = TextModel | EmbeddingModel
RunningRequest: TypeAlias = Generation | EmbeddingJob


def begin(model: WorkerModel, request: Request) -> RunningRequest:
    """Begin a request. Raises UsageError for a wrong one, and for one of the kind that this model does not do."""
    target = model.identity.target
    if isinstance(request, EmbedRequest):
        if isinstance(model, TextModel):
            raise UsageError(f"{target} writes text here and gives no vectors: start with --task embed")
        return model.begin(request.inputs.texts(request.tokens))
    if isinstance(model, EmbeddingModel):
        raise UsageError(f"{target} gives vectors here and writes no text")
    prompt, chat = request.prompt, request.chat
    if request.messages is not None:
        prompt, chat = model.encode_messages(request.messages), True
    assert prompt is not None
    return model.stream(prompt, request.options, chat=chat, grammar=request.grammar)
