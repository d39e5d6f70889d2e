"""The events that a pool of workers reports, wherever they run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ready:
    """The worker has loaded its model.

    facts: target, assistant, precision, executor and load_s; context_length and vocab_size, None where the model sets
    none; concurrency, the most requests that it takes at a time (missing: as many as are asked for); pauses, whether
    requests can be paused.
    """

    instance: int
    facts: dict[str, Any]


@dataclass(frozen=True)
class Answered:
    """The worker has finished a request, and can take another.

    `result` is `Result.as_dict()`, or None with `error`; `again`: another try may succeed; `refused`: the
    request itself is wrong. `request` is the request's id: answers come in any order.
    """

    instance: int
    result: dict[str, Any] | None
    error: str | None = None
    again: bool = False
    request: int = 0
    refused: bool = False


@dataclass(frozen=True)
class Ended:
    """The worker has ended. refusal: its message and exit code, where it reported itself that it cannot load."""

    instance: int
    reason: str
    refusal: tuple[str, int] | None = None


@dataclass(frozen=True)
class LogLine:
    """A line on the worker's standard error."""

    instance: int
    line: str


@dataclass(frozen=True)
class Streamed:
    """New tokens of a request that is streamed.

    chunk: pieces, a list of [text, token id, drafted]; logprobs of each, or None; drafted and accepted, tokens; cached,
    those of the prompt that the prefix cache had, in the first chunk.
    """

    instance: int
    request: int
    chunk: dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """Counts since the worker's start. stats: `engine`, an EngineStats; `blocks`, used and total, or None."""

    instance: int
    stats: dict[str, Any]


@dataclass(frozen=True)
class PhaseReport:
    """What a worker that loads does now. share: of that, from 0 to 1, or None; seconds: since it began."""

    instance: int
    name: str
    share: float | None
    seconds: float


Event = Ready | Answered | Ended | LogLine | Streamed | Measured | PhaseReport
