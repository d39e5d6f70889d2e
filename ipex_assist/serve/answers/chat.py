"""Answers of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ipex_assist.serve.answers.texts import GrowingText, Growth, Texts
from ipex_assist.serve.answers.writer import ChunkWriter
from ipex_assist.serve.logprobs import TokenChoice, chat_form
from ipex_assist.serve.protocol.chat import ChatRequest
from ipex_assist.serve.service import Service


class ChatWriter(ChunkWriter):
    """The model's turn, n times."""

    def __init__(self, service: Service, texts: Texts, body: ChatRequest) -> None:
        super().__init__(service, texts, "chatcmpl", "chat.completion.chunk", body.stream_options)
        self._service, self._details = service, bool(body.draft_details)
        self._wants_logprobs = body.wanted_logprobs is not None

    def begin(self) -> Iterator[str]:
        """Who speaks, for each of the texts."""
        for text in self.texts.all:
            yield self.chunk(self._choice(text, {"role": "assistant", "content": ""}))

    def grown(self, text: GrowingText, growth: Growth) -> Iterator[str]:
        """A chunk, unless all is held back."""
        if growth.text or growth.tokens or self._details:
            yield self.chunk(self._choice(text, {"content": growth.text}, growth))

    def ended(self, text: GrowingText, growth: Growth) -> Iterator[str]:
        """The last chunk of this text, with what the draft did for it."""
        delta = {"content": growth.text} if growth.text or growth.tokens else {}
        yield self.chunk(self._choice(text, delta, growth, text.finish_reason), **text.report())

    def _choice(
        self, text: GrowingText, delta: dict[str, Any], growth: Growth | None = None, reason: str | None = None
    ) -> dict[str, Any]:
        tokens = growth.tokens if growth is not None else []
        choice: dict[str, Any] = {"index": text.index, "delta": delta, "logprobs": self._logprobs(tokens)}
        if self._details and growth is not None and growth.pieces:
            choice["draft"] = {"pieces": [[piece.text, piece.drafted] for piece in growth.pieces]}
        return {**choice, "finish_reason": reason}

    def _logprobs(self, tokens: list[TokenChoice]) -> dict[str, Any] | None:
        if not tokens:
            return None
        return {"content": chat_form(tokens, self._service.token_texts), "refusal": None}

    def whole(self) -> dict[str, Any]:
        """ChatCompletion."""
        choices = []
        for text in self.texts.all:
            assert text.result is not None
            logprobs = self._logprobs(text.tokens)
            if self._wants_logprobs and logprobs is None:
                logprobs = {"content": [], "refusal": None}
            message = {"role": "assistant", "content": text.result["text"], "refusal": None}
            choices.append(
                {"index": text.index, "message": message, "logprobs": logprobs, "finish_reason": text.finish_reason}
            )
        return self.completed("chat.completion", choices)
