"""The base class of response writers, and the chunks that chat and text completions have in common."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from starlette.responses import Response

from ipex_assist.serve.answers.choice_texts import ChoiceText, ChoiceTexts, TextDelta
from ipex_assist.serve.backend import Finished, OutputChunk
from ipex_assist.serve.choice_runner import ChoiceEvent
from ipex_assist.serve.errors import ApiError
from ipex_assist.serve.protocol.common import StreamOptions, new_id, now
from ipex_assist.serve.service import Service

END = "data: [DONE]\n\n"
# Valid in JSON, but many event stream readers treat them as line ends.
_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def compact(value: Any) -> str:
    """Compact JSON on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_LINE_ENDS)


def event(value: Any, name: str | None = None) -> str:
    """A server-sent event."""
    return f"{f'event: {name}' + chr(10) if name else ''}data: {compact(value)}\n\n"


class AnswerWriter(ABC):
    """Builds the response of one request. `take` is called with every event, streamed or not."""

    @abstractmethod
    def take(self, choice_event: ChoiceEvent) -> Iterator[str]:
        """Add an event; yields stream events, which a whole response ignores."""

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The whole response, after all choices have ended."""

    def begin(self) -> Iterator[str]:
        """Stream events before the first output."""
        return iter(())

    def keep_alive(self) -> str:
        """What is sent in a stream where there is nothing to say for long."""
        return ": keep-alive\n\n"

    def end(self) -> Iterator[str]:
        """Stream events after all choices have ended."""
        return iter(())

    def failed(self, error: ApiError) -> Iterator[str]:
        """The last event of a stream that fails."""
        yield event(error.body())

    def refusal(self, error: ApiError) -> Response:
        """The response to a request that failed before anything was sent."""
        return error.response()


class Writer(AnswerWriter):
    """Of a request whose choices are texts."""

    def __init__(self, texts: ChoiceTexts) -> None:
        self.texts = texts

    def take(self, choice_event: ChoiceEvent) -> Iterator[str]:
        """Add an event; yields stream events, which a whole response ignores."""
        text, output = self.texts[choice_event.index], choice_event.output
        before = text.new_tokens
        text_delta = text.end(output) if isinstance(output, Finished) else text.take(output)
        self.texts.new_tokens += text.new_tokens - before
        if self.texts.pictured and isinstance(output, Finished):
            self.texts.prompt_tokens = output.result["prompt_tokens"]
        if text.index == 0 and isinstance(output, OutputChunk):
            self.texts.cached_tokens += output.cached
        yield from (self.ended if isinstance(output, Finished) else self.grown)(text, text_delta)

    @abstractmethod
    def grown(self, text: ChoiceText, text_delta: TextDelta) -> Iterator[str]:
        """Stream events of a chunk."""

    @abstractmethod
    def ended(self, text: ChoiceText, text_delta: TextDelta) -> Iterator[str]:
        """Stream events of a choice's end. text_delta: what was held back until then."""

    @abstractmethod
    def end(self) -> Iterator[str]:
        """Stream events after all choices have ended."""


class ChunkWriter(Writer):
    """Base of chat and text completions, whose chunks differ only in their choices."""

    def __init__(
        self, service: Service, texts: ChoiceTexts, prefix: str, kind: str, options: StreamOptions | None
    ) -> None:
        super().__init__(texts)
        self._usage = bool(options and options.include_usage)
        self._usage_always = bool(options and options.continuous_usage_stats)
        self._head = {
            "id": new_id(prefix),
            "object": kind,
            "created": now(),
            "model": service.facts.name,
            "system_fingerprint": service.fingerprint,
        }

    def chunk(self, *choices: dict[str, Any], **more: Any) -> str:
        """One event."""
        value = {**self._head, "choices": list(choices), **more}
        if "usage" not in value and (self._usage or self._usage_always):
            value["usage"] = self.texts.usage() if self._usage_always else None
        return event(value)

    def report_of(self, text: ChoiceText) -> dict[str, Any]:
        """Draft statistics for the last chunk of a choice; none if the usage chunk will have them for all choices.

        Readers add up the statistics of all chunks, so they are sent once.
        """
        return {} if self._usage else text.report()

    def end(self) -> Iterator[str]:
        """The usage chunk with draft statistics, if requested, and [DONE]."""
        if self._usage:
            yield self.chunk(usage=self.texts.usage(), **self.texts.report())
        yield END

    def completed(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """The whole response."""
        return {
            **self._head,
            "object": kind,
            "choices": choices,
            "usage": self.texts.usage(),
            **self.texts.report(),
        }
