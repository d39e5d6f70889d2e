"""What is found in outputs: content, thoughts and calls, as they come; and the ids of calls."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias


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
