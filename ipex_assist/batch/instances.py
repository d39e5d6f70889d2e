"""What the coordinator asks of instances, wherever they run, and what they report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Ready:
    """The instance has loaded its model; `facts` are target, precision, executor and load_s."""

    instance: int
    facts: dict[str, Any]


@dataclass(frozen=True)
class Answered:
    """The instance is done with its prompt and waits for the next.

    `result` is `Result.as_dict()`, or None with `error`; `again` says that another instance may do better.
    """

    instance: int
    result: dict[str, Any] | None
    error: str | None = None
    again: bool = False


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
    """A fixed number of places for instances; each has at most one process, which does one prompt at a time."""

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
        """Send it a prompt (`Prompt.request()`); it reports Answered or Ended."""

    def end(self, instance: int, reason: str) -> None:
        """Kill it; it reports Ended with this reason, after what it had answered before."""

    def wait(self, seconds: float) -> Sequence[Event]:
        """Return what happened, in its order; wait at most so many seconds for something to happen."""

    def close(self) -> None:
        """End all that is left; nothing is reported any more."""
