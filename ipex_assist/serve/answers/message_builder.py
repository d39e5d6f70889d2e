"""Splits the text of a choice into thoughts, content and tool calls, and builds the assistant's message."""

from __future__ import annotations

from typing import Any

from ipex_assist.serve.answers.choice_texts import TextDelta
from ipex_assist.serve.tools import OutputReader, ParsedEvent, Thought, content_and_calls, merged


class MessageBuilder:
    """Builds the assistant's message. reader: finds thoughts and calls; None where all of a text is content."""

    def __init__(self, reader: OutputReader | None) -> None:
        self.reader = reader
        self._events: list[ParsedEvent] = []
        self.shown: list[str] | None = (
            None  # of a model that thinks: the content that each token of the last delta adds
        )

    @property
    def called(self) -> bool:
        """Whether any tool was called."""
        return self.reader is not None and self.reader.calls > 0

    @property
    def reasoning_tokens(self) -> int:
        """How many tokens thoughts had so far."""
        return 0 if self.reader is None else self.reader.reasoning_tokens

    def grow(self, text_delta: TextDelta) -> list[ParsedEvent]:
        """Parse newly released text into events of thoughts, content and calls; adjacent ones of a kind are merged."""
        if self.reader is None:
            return self._took([text_delta.text] if text_delta.text else [])
        held = text_delta.text[
            sum(len(token_delta.text) for token_delta in text_delta.token_deltas) :
        ]  # held-back text without a token
        parts = [self.reader.push(token_delta.text, token_delta.token) for token_delta in text_delta.token_deltas]
        if self.reader.thoughts is not None:
            self.shown = ["".join(event for event in part if isinstance(event, str)) for part in parts]
        events = [event for part in parts for event in part]
        return self._took(merged([*events, *(self.reader.push(held) if held else ())]))

    def finish(self) -> list[ParsedEvent]:
        """The remaining events at the end of the text."""
        return self._took([] if self.reader is None else self.reader.finish())

    def _took(self, events: list[ParsedEvent]) -> list[ParsedEvent]:
        self._events += events
        return events

    def message(self) -> dict[str, Any]:
        """The message in OpenAI's format: content, and reasoning and tool_calls if there are any."""
        content, calls = content_and_calls(self._events)
        thought = "".join(event.text for event in self._events if isinstance(event, Thought))
        reasoning = reasoning_fields(thought) if thought else {}
        if not calls:
            return {"content": content or "", **reasoning}
        functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
        named = zip(calls, functions, strict=True)
        return {
            "content": content,
            **reasoning,
            "tool_calls": [{"id": call.id, "type": "function", "function": function} for call, function in named],
        }


def reasoning_fields(text: str) -> dict[str, str]:
    """Thoughts by the names that clients read: DeepSeek's, and that of OpenRouter and newer vLLM."""
    return {"reasoning_content": text, "reasoning": text}
