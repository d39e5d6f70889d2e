"""Answers of /v1/completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ipex_assist.serve.answers.texts import GrowingText, Growth, Texts
from ipex_assist.serve.answers.writer import ChunkWriter
from ipex_assist.serve.logprobs import TokenChoice, completion_form
from ipex_assist.serve.protocol.completions import CompletionRequest
from ipex_assist.serve.service import Service

OBJECT = "text_completion"


class CompletionWriter(ChunkWriter):
    """Texts, with their tokens' log-probabilities where they are wanted."""

    def __init__(self, service: Service, texts: Texts, body: CompletionRequest) -> None:
        super().__init__(service, texts, "cmpl-", OBJECT, body.stream_options)
        self._service, self._top, self._details = service, body.logprobs, bool(body.draft_details)
        self._offsets = [0] * len(texts.all)

    def grown(self, text: GrowingText, growth: Growth) -> Iterator[str]:
        """A chunk, unless all is held back."""
        if growth.text or growth.tokens or self._details:
            yield self.chunk(self._choice(text, growth, None))

    def ended(self, text: GrowingText, growth: Growth) -> Iterator[str]:
        """The last chunk of this text, with what the draft did for it."""
        yield self.chunk(self._choice(text, growth, text.finish_reason), **text.report())

    def _choice(self, text: GrowingText, growth: Growth, reason: str | None) -> dict[str, Any]:
        offset = self._offsets[text.index]
        logprobs = self._logprobs(growth.tokens, offset) if growth.tokens else None
        self._offsets[text.index] += sum(len(token) for token in (logprobs or {}).get("tokens", []))
        choice: dict[str, Any] = {"index": text.index, "text": growth.text, "logprobs": logprobs}
        if self._details and growth.pieces:
            choice["draft"] = growth.draft()
        return {**choice, "finish_reason": reason}

    def _logprobs(self, tokens: list[TokenChoice], offset: int) -> dict[str, Any]:
        return completion_form(tokens, self._service.token_texts, offset, self._top or 0)

    def whole(self) -> dict[str, Any]:
        """Completion."""
        choices = []
        for text in self.texts.all:
            assert text.result is not None
            logprobs = None if self._top is None else self._logprobs(text.tokens, 0)
            choices.append(
                {
                    "index": text.index,
                    "text": text.result["text"],
                    "logprobs": logprobs,
                    "finish_reason": text.finish_reason,
                }
            )
        return self.completed(OBJECT, choices)
