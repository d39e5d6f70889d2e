"""Builds the answers of /v1/embeddings and /v1/rerank from the vectors that engines give."""

from __future__ import annotations

import base64
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipex_assist.embedding.steps import normalized
from ipex_assist.serve.answers.writer import AnswerWriter
from ipex_assist.serve.backend import Finished
from ipex_assist.serve.choice_runner import ChoiceEvent
from ipex_assist.serve.protocol.common import new_id


class VectorWriter(AnswerWriter):
    """Collects vectors. jobs: the places of each request's texts in the answer."""

    def __init__(self, model: str, jobs: Sequence[Sequence[int]]) -> None:
        self._model, self._jobs, self._tokens = model, jobs, 0
        self._encoded: list[str] = [""] * sum(map(len, jobs))

    def take(self, choice_event: ChoiceEvent) -> Iterator[str]:
        """See AnswerWriter."""
        output = choice_event.output
        assert isinstance(output, Finished), "parts of a vector"
        places = self._jobs[choice_event.index]
        for place, vector in zip(places, output.result["vectors"], strict=True):
            self._encoded[place] = vector
        self._tokens += output.result["prompt_tokens"]
        return iter(())

    def vector(self, place: int) -> NDArray[np.float32]:
        """One of them."""
        return np.frombuffer(base64.b64decode(self._encoded[place]), "<f4")

    def usage(self) -> dict[str, int]:
        """Tokens that were read."""
        return {"prompt_tokens": self._tokens, "total_tokens": self._tokens}

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """See AnswerWriter."""


class EmbeddingWriter(VectorWriter):
    """OpenAI's list. dimensions: how many numbers of a vector, at length 1; None: all as they are."""

    def __init__(self, model: str, jobs: Sequence[Sequence[int]], dimensions: int | None, as_base64: bool) -> None:
        super().__init__(model, jobs)
        self._dimensions, self._as_base64 = dimensions, as_base64

    def whole(self) -> dict[str, Any]:
        """See AnswerWriter."""
        data = [
            {"object": "embedding", "index": place, "embedding": self._shown(place)}
            for place in range(len(self._encoded))
        ]
        return {"object": "list", "data": data, "model": self._model, "usage": self.usage()}

    def _shown(self, place: int) -> str | list[float]:
        if self._as_base64 and self._dimensions is None:
            return self._encoded[place]
        vector = self.vector(place)
        if self._dimensions is not None:
            vector = normalized(vector[: self._dimensions])
        return base64.b64encode(vector.tobytes()).decode() if self._as_base64 else vector.tolist()


class RerankWriter(VectorWriter):
    """The `most` most relevant documents. documents: shown beside their scores; None: they are not."""

    def __init__(self, model: str, jobs: Sequence[Sequence[int]], most: int, documents: Sequence[str] | None) -> None:
        super().__init__(model, jobs)
        self._most, self._documents = most, documents

    def whole(self) -> dict[str, Any]:
        """See AnswerWriter. Equal scores keep the order of the request."""
        scores = [float(self.vector(place)[0]) for place in range(len(self._encoded))]
        order = sorted(range(len(scores)), key=lambda place: -scores[place])[: self._most]
        results = [{"index": place, "relevance_score": scores[place], **self._document(place)} for place in order]
        return {"id": new_id("rerank"), "model": self._model, "results": results, "usage": self.usage()}

    def _document(self, place: int) -> dict[str, Any]:
        return {} if self._documents is None else {"document": {"text": self._documents[place]}}
