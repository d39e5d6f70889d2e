"""What is asked of instances, wherever they run, what they report, and when one that died is started anew."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


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
class Said:
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


Event = Ready | Answered | Ended | Said | Streamed | Measured

# Seconds before an instance is started anew, by how often it ended in a row without finishing a prompt.
RESTART_DELAYS = (0.0, 1.0, 2.0, 5.0)


@dataclass
class Life:
    """Whether an instance runs. `restart_at`, by time.monotonic, is when a dead one is started anew."""

    alive: bool = False
    ready: bool = False
    was_ready: bool = False
    given_up: bool = False
    ends_in_a_row: int = 0
    restart_at: float = 0.0

    def count_end(self, *, refused: bool, delays: Sequence[float] = RESTART_DELAYS, for_ever: bool = False) -> None:
        """Decide whether and when it is started anew; for_ever: that it is, as long as it was ever ready.

        One that says itself that it cannot load is left out at once, unless it could before: then it may have wanted
        memory just now.
        """
        self.alive = self.ready = False
        self.ends_in_a_row += 1
        too_often = self.ends_in_a_row > len(delays) and not (for_ever and self.was_ready)
        self.given_up = too_often or (refused and not self.was_ready)
        if not self.given_up:
            self.restart_at = time.monotonic() + delays[min(self.ends_in_a_row, len(delays)) - 1]


class Pool(Protocol):
    """A fixed number of places for instances; each has at most one process, with several prompts in flight."""

    @property
    def size(self) -> int:
        """How many instances there may be."""

    def describe(self, instance: int) -> str:
        """Return where an instance runs, as text for people."""

    def host(self, instance: int) -> str:
        """Return the name of the machine that an instance runs on."""

    def start(self, instance: int) -> None:
        """Start its process, which loads the model and reports Ready. Raises IpexAssistError where it cannot."""

    def submit(self, instance: int, request: Mapping[str, Any]) -> None:
        """Send it a prompt (`Prompt.request()`) under the id of `request`; it reports Answered or Ended."""

    def cancel(self, instance: int, request: int) -> None:
        """Ask it to give up a request; it reports Answered, with an error unless there was a result just then."""

    def end(self, instance: int, reason: str) -> None:
        """Kill it; it reports Ended with this reason, after what it had answered before."""

    def wait(self, seconds: float) -> Sequence[Event]:
        """Return what happened, in its order; wait at most so many seconds for something to happen."""

    def close(self) -> None:
        """End all that is left; nothing is reported any more."""
