"""What a command does when nobody reads its output any more (`… | head`)."""

from __future__ import annotations

import os
import signal
import sys

# As shells report a program that SIGPIPE has ended.
READER_HAS_GONE = 128 + signal.SIGPIPE


def reader_has_gone() -> int:
    """Return the exit code for a BrokenPipeError, and keep Python from complaining about the pipe again at exit."""
    discard_output()
    return READER_HAS_GONE


def discard_output() -> None:
    """Let standard output lead nowhere from here on, so that what could not be written is not tried again at exit."""
    if sys.stdout is None:
        return
    try:
        own = sys.stdout.fileno()
    except (OSError, ValueError):  # a stream in memory
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, own)
    os.close(null)
