"""Splits the text of a choice into content and tool calls, and builds the assistant's message."""

from __future__ import annotations

from typing import Any

from ipex_assist.serve.answers.choice_texts import TextDelta
from ipex_assist.serve.tools import CallParser, ParsedEvent, content_and_calls, merged


class MessageBuilder:
    """Builds the assistant's message. parser: finds tool calls; None without tools."""

    def __init__(self, parser: CallParser | None) -> None:
        self.parser = parser
        self._events: list[ParsedEvent] = []

    @property
    def called(self) -> bool:
        """Whether any tool was called."""
        return self.parser is not None and self.parser.calls > 0

    def grow(self, text_delta: TextDelta) -> list[ParsedEvent]:
        """Parse newly released text into events of content and calls; adjacent ones of a kind are merged."""
        if self.parser is None:
            return self._took([text_delta.text] if text_delta.text else [])
        held = text_delta.text[
            sum(len(token_delta.text) for token_delta in text_delta.token_deltas) :
        ]  # held-back text without a token
        events = [
            event
            for token_delta in text_delta.token_deltas
            for event in self.parser.push(token_delta.text, token_delta.token)
        ]
        return self._took(merged([*events, *self.parser.push(held)]))

    def finish(self) -> list[ParsedEvent]:
        """The remaining events at the end of the text."""
        return self._took([] if self.parser is None else self.parser.finish())

    def _took(self, events: list[ParsedEvent]) -> list[ParsedEvent]:
        self._events += events
        return events

    def message(self) -> dict[str, Any]:
        """The message in OpenAI's format: content, and tool_calls if there are any."""
        content, calls = content_and_calls(self._events)
        if not calls:
            return {"content": content or ""}
        functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
        named = zip(calls, functions, strict=True)
        return {
            "content": content,
            "tool_calls": [{"id": call.id, "type": "function", "function": function} for call, function in named],
        }
