"""Answers of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ipex_assist.serve.answers.choice_texts import ChoiceText, ChoiceTexts, TextDelta
from ipex_assist.serve.answers.message_builder import MessageBuilder, reasoning_fields
from ipex_assist.serve.answers.writer import ChunkWriter
from ipex_assist.serve.logprobs import TokenChoice, chat_form
from ipex_assist.serve.protocol.chat import ChatRequest
from ipex_assist.serve.service import Service
from ipex_assist.serve.tools import OutputForm, ParsedEvent, Thought


def _delta(event: ParsedEvent) -> dict[str, Any]:
    """OpenAI's delta of content, of a thought or of a tool call."""
    if isinstance(event, str):
        return {"content": event}
    if isinstance(event, Thought):
        return reasoning_fields(event.text)
    if event.id is None:
        return {"tool_calls": [{"index": event.index, "function": {"arguments": event.arguments}}]}
    function = {"name": event.name, "arguments": event.arguments}
    return {"tool_calls": [{"index": event.index, "id": event.id, "type": "function", "function": function}]}


PLAIN = OutputForm()


class ChatWriter(ChunkWriter):
    """Writes chat completions of n choices."""

    def __init__(self, service: Service, texts: ChoiceTexts, body: ChatRequest, form: OutputForm = PLAIN) -> None:
        """form: how thoughts and calls are found."""
        super().__init__(service, texts, "chatcmpl-", "chat.completion.chunk", body.stream_options)
        self._service, self._details = service, bool(body.draft_details)
        self._wants_logprobs = body.wanted_logprobs is not None
        self._turns = [MessageBuilder(form.reader()) for _ in texts.all]

    def begin(self) -> Iterator[str]:
        """The first chunk of each choice, with the role."""
        for text in self.texts.all:
            yield self.chunk(self._choice(text, {"role": "assistant", "content": ""}))

    def grown(self, text: ChoiceText, text_delta: TextDelta) -> Iterator[str]:
        """Chunks of content and tool calls; none while everything is held back."""
        deltas = [_delta(event) for event in self._turns[text.index].grow(text_delta)]
        self._count_thoughts()
        if not deltas and (text_delta.tokens or (self._details and text_delta.token_deltas)):
            deltas = [{"content": ""}]
        for place, delta in enumerate(deltas):
            yield self.chunk(self._choice(text, delta, text_delta if not place else None))

    def ended(self, text: ChoiceText, text_delta: TextDelta) -> Iterator[str]:
        """The last chunks of a choice."""
        turn = self._turns[text.index]
        *deltas, last = [_delta(event) for event in [*turn.grow(text_delta), *turn.finish()]] or [{}]
        self._count_thoughts()
        for delta in deltas:
            yield self.chunk(self._choice(text, delta))
        yield self.chunk(self._choice(text, last, text_delta, self._reason(text)), **self.report_of(text))

    def _count_thoughts(self) -> None:
        self.texts.reasoning_tokens = sum(turn.reasoning_tokens for turn in self._turns)

    def _reason(self, text: ChoiceText) -> str:
        return "tool_calls" if self._turns[text.index].called and text.finish_reason == "stop" else text.finish_reason

    def _choice(
        self, text: ChoiceText, delta: dict[str, Any], text_delta: TextDelta | None = None, reason: str | None = None
    ) -> dict[str, Any]:
        tokens = text_delta.tokens if text_delta is not None else []
        choice: dict[str, Any] = {"index": text.index, "delta": delta, "logprobs": self._logprobs(tokens)}
        if self._details and text_delta is not None and text_delta.token_deltas:
            choice["draft"] = text_delta.draft(self._turns[text.index].shown)
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
            message = {"role": "assistant", **self._turns[text.index].message(), "refusal": None}
            choices.append(
                {"index": text.index, "message": message, "logprobs": logprobs, "finish_reason": self._reason(text)}
            )
        return self.completed("chat.completion", choices)
