"""A server's backend with one embedding model in this process: what an engine process does, without its pipes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from ipex_assist.embedding.model import EmbeddingModel
from ipex_assist.env.errors import UsageError
from ipex_assist.serve.backend import (
    Failed,
    Finished,
    GenerationRequest,
    InvalidField,
    ModelFacts,
    OutputChunk,
    ServerStatistics,
)


class EmbeddingBackend:
    """Passes run whenever a request waits. cancelled: requests whose generator was closed before its end."""

    ready, draining = True, False

    def __init__(self, model: EmbeddingModel) -> None:
        self.model, self.pace = model, 0.0
        self.cancelled = 0
        self.facts = ModelFacts(
            name="tiny",
            target="folder/tiny",
            precision="fp32",
            executor="native",
            context_length=model.context_length,
            vocab_size=model.vocab_size,
            created=1000,
            embedding=model.facts,
        )
        self.tokenizer = model.tokenizer

    async def generate(
        self, request: GenerationRequest, *, timeout: float | None = None
    ) -> AsyncGenerator[OutputChunk | Finished, None]:
        assert request.inputs is not None
        ends = time.monotonic() + (timeout or 60)
        try:
            job = self.model.begin(request.inputs.texts(request.tokens))
        except UsageError as error:
            raise InvalidField(str(error), None) from None
        try:
            while not job.ready():
                await asyncio.sleep(self.pace)
                if time.monotonic() > ends:
                    raise TimeoutError("the request took too long")
        finally:
            if not job.finished:
                self.cancelled += 1
                job.interrupt()
        if job.error is not None:
            raise Failed(str(job.error))
        yield Finished(job.result().as_dict())

    def statistics(self) -> ServerStatistics:
        return ServerStatistics(slots=1, alive=1, engine=self.model.engine_stats.as_dict())
