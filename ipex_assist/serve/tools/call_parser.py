"""The base of incremental tool call parsers: output becomes content and call deltas as soon as it is unambiguous.

Text is read character by character, so that the result does not depend on how it is split into chunks.
"""

from __future__ import annotations

import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from ipex_assist.serve.tools.json_repair import repaired
from ipex_assist.serve.tools.json_scanner import ARGUMENTS, SPACE, CallScanner


@dataclass(frozen=True)
class CallDelta:
    """A delta of a call; the first one has id and name. arguments: a fragment of the JSON text."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True)
class Thought:
    """A piece of what the model thinks before it answers."""

    text: str


ParsedEvent: TypeAlias = "str | Thought | CallDelta"  # a str is content


@dataclass(frozen=True)
class Call:
    """A whole call."""

    id: str
    name: str
    arguments: str


def merged(events: Iterable[ParsedEvent]) -> list[ParsedEvent]:
    """Merge adjacent events of the same kind."""
    found: list[ParsedEvent] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, str) and isinstance(last, str):
            found[-1] = last + event
        elif isinstance(event, Thought) and isinstance(last, Thought):
            found[-1] = Thought(last.text + event.text)
        elif isinstance(event, CallDelta) and isinstance(last, CallDelta) and event.index == last.index:
            found[-1] = replace(last, arguments=last.arguments + event.arguments)
        else:
            found.append(event)
    return found


def content_and_calls(events: Iterable[ParsedEvent]) -> tuple[str | None, list[Call]]:
    """Return the content (None if empty) and the calls of all events; thoughts are neither."""
    content = ""
    calls: dict[int, Call] = {}
    for event in events:
        if isinstance(event, str):
            content += event
        elif isinstance(event, Thought):
            continue
        elif event.index in calls:
            known = calls[event.index]
            calls[event.index] = Call(known.id, known.name, known.arguments + event.arguments)
        else:
            assert event.id is not None
            assert event.name is not None
            calls[event.index] = Call(event.id, event.name, event.arguments)
    return content or None, [calls[index] for index in sorted(calls)]


def call_id() -> str:
    """A call id in OpenAI's format."""
    return "call_" + secrets.token_hex(12)


def short_id() -> str:
    """Nine letters and digits, as Mistral's templates require."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


class CallParser(ABC):
    """Parses one output. calls: how many were started. Without `parallel` only the first is reported.

    Where a grammar holds calls to their form, they are told of while they are written (`streams`). Otherwise a call is
    told of as a whole, once its arguments are known to be JSON, and is text if they are not.
    """

    def __init__(
        self,
        names: Iterable[str],
        *,
        parallel: bool = True,
        streams: bool = False,
        markers: Mapping[int, str] | None = None,
        new_id: Callable[[], str] = call_id,
    ) -> None:
        """names: of the tools. markers: special tokens, whose text nobody else writes out, by their ids."""
        self.names = frozenset(names)
        self.calls = 0
        self._parallel, self._streams, self._markers, self._new_id = parallel, streams, dict(markers or {}), new_id
        self._events: list[ParsedEvent] = []
        self._white = ""  # space that is content only if content follows, or if there is no call at all
        self._has_content = False
        self._announced = False  # whether the call that is being read has been told of

    def push(self, text: str, token: int | None = None) -> list[ParsedEvent]:
        """What is certain with the next piece of text; token: with which it came, as backend.Piece has it."""
        for character in text + (self._markers.get(token, "") if token is not None else ""):
            self._feed(character)
        return self._taken()

    def finish(self) -> list[ParsedEvent]:
        """What is left at the end of the text."""
        self._end()
        if not self.calls:
            self._content(self._white)
        return self._taken()

    @abstractmethod
    def _feed(self, character: str) -> None: ...

    @abstractmethod
    def _end(self) -> None: ...

    def _taken(self) -> list[ParsedEvent]:
        """The events since the last time."""
        events, self._events = self._events, []
        return merged(events)

    def _content(self, text: str) -> None:
        if text:
            self._events.append(text)

    def _text(self, text: str) -> None:
        """Content. Space around calls stays between words of it."""
        for character in text:
            if character in SPACE:
                self._white += character
                continue
            if self._has_content or not self.calls:
                self._content(self._white)
            self._white, self._has_content = "", True
            self._content(character)

    def _begin_call(self, name: str) -> None:
        self.calls += 1
        self._white, self._announced = self._white if self._has_content else "", True
        if self.calls == 1 or self._parallel:
            self._events.append(CallDelta(self.calls - 1, self._new_id(), name))

    def _arguments(self, text: str) -> None:
        if text and (self.calls == 1 or self._parallel):
            self._events.append(CallDelta(self.calls - 1, arguments=text))

    def _emit_call(self, scanner: CallScanner, *, certain: bool) -> None:
        """Tell of a call as far as it has been read, if calls are told of before their end. certain: that it is one,
        and not an object that looks alike."""
        if not self._streams:
            return
        certain = certain or scanner.key in ARGUMENTS or scanner.has_arguments
        if scanner.name is not None and certain and not self._announced:
            self._begin_call(scanner.name)
        if self._announced:
            self._arguments("".join(scanner.pieces))
            scanner.pieces.clear()
            if scanner.done and not scanner.has_arguments:
                self._arguments("{}")

    def _end_call(self, scanner: CallScanner, *, certain: bool) -> bool:
        """Tell of a call of which no more will be read, unless that was done; whether it is one. certain: as above."""
        if self._streams or scanner.name is None or not (scanner.has_arguments or (certain and scanner.done)):
            return self._announced
        return self._whole_call(scanner.name, "".join(scanner.pieces) or "{}")

    def _whole_call(self, name: str, written: str) -> bool:
        """Tell of a call with these arguments, if they are an object."""
        if (arguments := repaired(written)) is None:
            return False
        self._begin_call(name)
        self._arguments(arguments)
        return True


class Marker:
    """Finds one of some words in a text that comes character by character."""

    def __init__(self, *words: str) -> None:
        self.words, self.held = words, ""

    def feed(self, character: str) -> tuple[str, str]:
        """The text that cannot belong to a word any more, and the word that is complete ("": none yet)."""
        self.held += character
        free = 0
        while not any(word.startswith(self.held[free:]) for word in self.words):
            free += 1
        text, self.held = self.held[:free], self.held[free:]
        if self.held in self.words:
            word, self.held = self.held, ""
            return text, word
        return text, ""

    def rest(self) -> str:
        """What was held back, at the end."""
        held, self.held = self.held, ""
        return held
