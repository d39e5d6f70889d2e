"""The interface of a pool of workers, wherever they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ipex_assist.workers.wire import Event, Request


class WorkerPool(Protocol):
    """A fixed number of instances; each has at most one process, with several requests in flight."""

    @property
    def size(self) -> int:
        """How many instances there may be."""

    def describe(self, instance: int) -> str:
        """Return where an instance runs, as text for people."""

    def host(self, instance: int) -> str:
        """Return the name of the machine that an instance runs on."""

    def start(self, instance: int) -> None:
        """Start its process, which loads the model and reports Ready. Raises IpexAssistError where it cannot."""

    def submit(self, instance: int, request: Request) -> None:
        """Send it a request; it reports Answered or Ended."""

    def cancel(self, instance: int, request: int) -> None:
        """Ask it to give up a request; it reports Answered, with an error unless there was a result just then."""

    def end(self, instance: int, reason: str) -> None:
        """Kill it; it reports Ended with this reason, after what it had answered before."""

    def wait(self, seconds: float) -> Sequence[Event]:
        """Return the events since the last call, in order; wait at most `seconds` for the first."""

    def close(self) -> None:
        """End all processes; no event is reported afterwards."""
