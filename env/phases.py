"""The phases of a start that take time: each has a name and a share that is done. Whoever watches them shows them.

By itself nothing is shown, and a phase costs next to nothing. Never imports torch.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

TICK_SECONDS = 0.2
_END_SECONDS = 1.0  # for the watcher to draw for the last time; it may hang in a terminal that is stopped


@dataclass(eq=False)
class LoadPhase:
    """One phase. share: from 0 to 1; None where it is not known.

    drawn_elsewhere: a library draws its progress on a terminal. inner_s: seconds of phases inside it.
    """

    name: str
    drawn_elsewhere: bool = False
    share: float | None = None
    inner_s: float = 0.0
    started: float = field(default_factory=lambda: time.monotonic())

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.started

    @property
    def own_seconds(self) -> float:
        """Seconds without those of phases inside it that have ended."""
        return self.seconds - self.inner_s

    def becomes(self, name: str, share: float | None) -> None:
        """Take a share, and a name; with another name its seconds start from 0."""
        if name != self.name:
            self.name, self.started, self.inner_s = name, time.monotonic(), 0.0
        self.share = share


def how_far(share: float | None, seconds: float) -> str:
    """How much is done, or, where that is not known, for how long it has been under way."""
    return f"{seconds:.0f} s" if share is None else f"{min(share, 1.0) * 100:.0f} %"


def describe(name: str, share: float | None, seconds: float) -> str:
    """A phase in a few words."""
    return f"{name}: {how_far(share, seconds)}"


Show = Callable[[Sequence[LoadPhase]], None]


class _Watcher:
    """Calls `show` with the phases that run, the outermost first, in a thread that lives as long as there are any."""

    def __init__(self, show: Show) -> None:
        self.show = show
        self._lock = threading.Lock()
        self._running: list[LoadPhase] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, phase: LoadPhase) -> None:
        with self._lock:
            self._running.append(phase)
            if self._thread is None:
                self._over = threading.Event()
                self._thread = threading.Thread(target=self._tick, args=(self._over,), name="phases", daemon=True)
                self._thread.start()

    def end(self, phase: LoadPhase) -> None:
        with self._lock:
            if phase not in self._running:
                return
            place = self._running.index(phase)
            del self._running[place:]  # and those inside it that a generator has left open
            if place:
                self._running[place - 1].inner_s += phase.seconds
            if self._running or self._thread is None:
                return
            thread, self._thread = self._thread, None
            self._over.set()
        thread.join(_END_SECONDS)  # what is printed next finds no line of ours

    def _tick(self, over: threading.Event) -> None:
        while not over.wait(TICK_SECONDS):
            with self._lock:
                running = list(self._running)
            self.show(running)
        self.show([])


_watcher: list[_Watcher] = []  # one at most


@contextlib.contextmanager
def watched(show: Show) -> Iterator[None]:
    """Let `show` be called while phases run in this process, inside the `with`; one that is inside another replaces it.

    show: gets the phases that run, every TICK_SECONDS, and none when the last one has ended.
    """
    before = watch(show)
    try:
        yield
    finally:
        _watcher[:] = before


def watch(show: Show | None) -> list[_Watcher]:
    """`watched` until the end of the process; None: nobody watches any more. Returns what watched before."""
    before = list(_watcher)
    _watcher[:] = [] if show is None else [_Watcher(show)]
    return before


@contextlib.contextmanager
def phase(name: str, *, drawn_elsewhere: bool = False) -> Iterator[LoadPhase]:
    """Run the body as a phase; it sets the share of what is yielded."""
    made = LoadPhase(name, drawn_elsewhere)
    watcher = _watcher[-1] if _watcher else None
    if watcher is not None:
        watcher.begin(made)
    try:
        yield made
    finally:
        if watcher is not None:
            watcher.end(made)
