"""Shows phases on standard error: a line that is rewritten on a terminal, else one plain line for each long phase."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TextIO

from ipex_assist.env.phases import LoadPhase, describe, watch, watched

SHOWN_AFTER = 0.5  # seconds until a phase is on the terminal; shorter ones would only flicker
PRINTED_AFTER = 2.0  # seconds until one gets its line in a file
_QUIET_SECONDS = 0.3  # after a message, until the line comes again
_CLEAR = "\r\033[K"


class PhaseDisplay:
    """Draws or prints phases on `stream`. `hide` makes room for a message."""

    def __init__(self, stream: TextIO, *, terminal: bool, prefix: str = "ipex-assist: ") -> None:
        self._stream, self._terminal, self._prefix = stream, terminal, prefix
        self._lock = threading.Lock()
        self._drawn = ""
        self._hidden_until = 0.0
        self._printed: set[tuple[int, str]] = set()

    def show(self, running: Sequence[LoadPhase]) -> None:
        """Show how far the phases are that run, the outermost first; none ends the line."""
        if self._terminal:
            self._draw(running)
        elif running and running[-1].own_seconds >= PRINTED_AFTER:
            inner = running[-1]
            if (id(inner), inner.name) not in self._printed:
                self._printed.add((id(inner), inner.name))
                self._write(f"{self._prefix}{inner.name}\n")
        if not running:
            self._printed.clear()

    def _draw(self, running: Sequence[LoadPhase]) -> None:
        long = [each for each in running if each.seconds >= SHOWN_AFTER]
        text = ""
        if long and not running[-1].drawn_elsewhere:
            text = self._prefix + describe(long[-1].name, long[-1].share, long[-1].seconds)
        with self._lock:
            if text == self._drawn or (time.monotonic() < self._hidden_until and text):
                return
            self._drawn = text
            self._write(_CLEAR + text[: self._columns() - 1])

    def hide(self) -> None:
        """Clear the line, since somebody is about to print; it comes again a moment later."""
        with self._lock:
            self._hidden_until = time.monotonic() + _QUIET_SECONDS
            if self._drawn:
                self._drawn = ""
                self._write(_CLEAR)

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except (OSError, ValueError):
            return 80

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a terminal that has gone is no reason to stop
            self._stream.write(text)
            self._stream.flush()


_displays: list[PhaseDisplay] = []


def hide_phases() -> None:
    """Make room on the terminal for a message that is printed next."""
    for display in _displays:
        display.hide()


class _RoomForMessages(logging.Filter):
    """Lets every record through, after the line of phases is gone."""

    def filter(self, record: logging.LogRecord) -> bool:
        hide_phases()
        return True


def show_phases() -> None:
    """Show this process's phases on its standard error from here on, and keep log messages off that line."""
    display = _on_stderr()
    if display is None:
        return
    _displays[:] = [display]
    watch(display.show)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_RoomForMessages())


def hide_later_phases() -> None:
    """Show no phase that begins from here on: something else has the terminal."""
    _displays.clear()
    watch(None)


@contextlib.contextmanager
def phases_shown(enabled: bool) -> Iterator[None]:
    """Show this process's phases inside the `with`, if `enabled`; what shows them already goes on with it."""
    display = _on_stderr() if enabled and not _displays else None
    if display is None:
        yield
        return
    with watched(display.show):
        yield


def _on_stderr() -> PhaseDisplay | None:
    """A display on standard error; None where that is closed.

    It has a descriptor of its own, since the process's is turned away while libraries are imported that print.
    """
    if sys.stderr is None:
        return None
    terminal = False
    try:
        terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        stream: TextIO = os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8", errors="replace")
    except (OSError, ValueError, AttributeError):  # somebody has put an object of theirs in its place
        stream = sys.stderr
    return PhaseDisplay(stream, terminal=terminal)
