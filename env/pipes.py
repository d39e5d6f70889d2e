"""What a command does when nobody reads its output any more (`… | head`)."""

from __future__ import annotations

import os
import signal
import sys

# As shells report a program that SIGPIPE has ended.
READER_HAS_GONE = 128 + signal.SIGPIPE


def reader_has_gone() -> int:
    """Return the exit code for a BrokenPipeError, and keep Python from complaining about the pipe again at exit."""
    if sys.stdout is not None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    return READER_HAS_GONE
