"""What the coordinator asks of instances, wherever they run, and what they report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Ready:
    """The instance has loaded its model; `facts` are target, precision, executor and load_s.

    And concurrency, the most prompts that it takes at a time; what has no such fact takes what is asked for.
    """

    instance: int
    facts: dict[str, Any]


@dataclass(frozen=True)
class Answered:
    """The instance is done with a request, and has room for another.

    `result` is `Result.as_dict()`, or None with `error`; `again` says that another try may do better. `request` is the
    request's id: answers come in any order.
    """

    instance: int
    result: dict[str, Any] | None
    error: str | None = None
    again: bool = False
    request: int = 0


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


Event = Ready | Answered | Ended | Said


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
