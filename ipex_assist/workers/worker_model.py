"""What a worker has loaded, and how it begins what it is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from ipex_assist.embedding.jobs import EmbeddingJob
from ipex_assist.embedding.model import EmbeddingModel
from ipex_assist.env.errors import UsageError
from ipex_assist.generation.pictured import PicturedPrompt
from ipex_assist.generation.stream import Generation
from ipex_assist.generation.text_model import TextModel
from ipex_assist.workers.wire import EmbedRequest, Request, TextRequest

WorkerModel: TypeAlias = TextModel | EmbeddingModel
RunningRequest: TypeAlias = Generation | EmbeddingJob


def has_images(request: Request) -> bool:
    """Whether `look` has something to read, which takes a while."""
    return isinstance(request, TextRequest) and bool(request.images)


def look(model: WorkerModel, request: Request) -> PicturedPrompt:
    """Read the images of a request; in any thread. Raises UsageError for wrong ones."""
    assert isinstance(request, TextRequest)
    if isinstance(model, EmbeddingModel):
        raise UsageError(f"{model.identity.target} gives vectors here and takes no images")
    prompt = request.prompt if request.messages is None else request.messages
    assert prompt is not None
    return model.see(prompt, request.images, chat=request.chat)


def begin(model: WorkerModel, request: Request, pictured: PicturedPrompt | None = None) -> RunningRequest:
    """Begin a request. Raises UsageError for a wrong one, and for one of the kind that this model does not do.

    pictured: its prompt, where its images have been read.
    """
    target = model.identity.target
    if isinstance(request, EmbedRequest):
        if isinstance(model, TextModel):
            raise UsageError(f"{target} writes text here and gives no vectors: start with --task embed")
        return model.begin(request.inputs.texts(request.tokens))
    if isinstance(model, EmbeddingModel):
        raise UsageError(f"{target} gives vectors here and writes no text")
    options = replace(request.options, streamed=request.stream)
    if pictured is not None:
        chat = request.chat or request.messages is not None
        return model.stream(pictured, options, chat=chat, grammar=request.grammar)
    prompt, chat = request.prompt, request.chat
    if request.messages is not None:
        prompt, chat = model.encode_messages(request.messages), True
    assert prompt is not None
    return model.stream(prompt, options, chat=chat, grammar=request.grammar)
