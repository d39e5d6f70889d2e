"""What workers report, wherever they run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ready:
    """The instance has loaded its model; `facts` are target, assistant, precision, executor and load_s.

    And context_length and vocab_size, None where a model sets none, and concurrency, the most prompts that it takes at
    a time; what has no such fact takes what is asked for.
    """

    instance: int
    facts: dict[str, Any]


@dataclass(frozen=True)
class Answered:
    """The instance is done with a request, and has room for another.

    `result` is `Result.as_dict()`, or None with `error`; `again` says that another try may do better, `refused` that
    the request itself cannot be met. `request` is the request's id: answers come in any order.
    """

    instance: int
    result: dict[str, Any] | None
    error: str | None = None
    again: bool = False
    request: int = 0
    refused: bool = False


@dataclass(frozen=True)
class Ended:
    """The instance is no more. `refusal` is its message and exit code if it said itself that it cannot load."""

    instance: int
    reason: str
    refusal: tuple[str, int] | None = None


@dataclass(frozen=True)
class LogLine:
    """A line on the instance's standard error."""

    instance: int
    line: str


@dataclass(frozen=True)
class Streamed:
    """A pass brought tokens of a request that asked for them as they come.

    chunk: pieces, a list of [text, token id, drafted]; logprobs of each, or None; drafted and accepted, tokens.
    """

    instance: int
    request: int
    chunk: dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """What the instance has done since its start: `engine` is EngineStats, blocks are used and total, or None."""

    instance: int
    stats: dict[str, Any]


Event = Ready | Answered | Ended | LogLine | Streamed | Measured
