"""What a form of answer must offer so that `streaming` can send it, and the fields that OpenAI's two have in common."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from ipex_assist.serve.answers.choice_texts import ChoiceText, ChoiceTexts, TextDelta
from ipex_assist.serve.backend import Finished
from ipex_assist.serve.choice_runner import ChoiceEvent
from ipex_assist.serve.errors import ApiError
from ipex_assist.serve.protocol.common import StreamOptions, new_id, now
from ipex_assist.serve.service import Service

END = "data: [DONE]\n\n"
# JSON may have them as they are, but many readers of event streams take them for ends of lines.
_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def compact(value: Any) -> str:
    """JSON in one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_LINE_ENDS)


def event(value: Any, name: str | None = None) -> str:
    """A server-sent event."""
    return f"{f'event: {name}' + chr(10) if name else ''}data: {compact(value)}\n\n"


class Writer(ABC):
    """Makes the answer of one request. `take` is called with all news, whether the answer is streamed or not."""

    def __init__(self, texts: ChoiceTexts) -> None:
        self.texts = texts

    def take(self, choice_event: ChoiceEvent) -> Iterator[str]:
        """Events of a stream; a writer of a whole answer has the texts grow all the same."""
        text = self.texts[choice_event.index]
        if isinstance(choice_event.output, Finished):
            yield from self.ended(text, text.end(choice_event.output))
        else:
            yield from self.grown(text, text.take(choice_event.output))

    def begin(self) -> Iterator[str]:
        """Events before the first news."""
        return iter(())

    @abstractmethod
    def grown(self, text: ChoiceText, text_delta: TextDelta) -> Iterator[str]:
        """Events of a part."""

    @abstractmethod
    def ended(self, text: ChoiceText, text_delta: TextDelta) -> Iterator[str]:
        """Events of a text's end. growth: what was held back until then."""

    @abstractmethod
    def end(self) -> Iterator[str]:
        """Events behind the last text's end."""

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The answer, when all texts have ended."""

    def failed(self, error: ApiError) -> Iterator[str]:
        """The last event of a stream that breaks off."""
        yield event(error.body())


class ChunkWriter(Writer):
    """Chunks of one kind of object: those of chat and of completions differ in their choices only."""

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
        """What the draft did, for the last chunk of a text; nothing where the usage's chunk will say it of all texts.

        Readers take every chunk that has it for another text's: it stands once.
        """
        return {} if self._usage else text.report()

    def end(self) -> Iterator[str]:
        """The usage with what the draft did, if it is wanted, and OpenAI's last line."""
        if self._usage:
            yield self.chunk(usage=self.texts.usage(), **self.texts.report())
        yield END

    def completed(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """The whole answer."""
        return {
            **self._head,
            "object": kind,
            "choices": choices,
            "usage": self.texts.usage(),
            **self.texts.report(),
        }
