"""Ends a command properly when the reader of its output has gone (`… | head`)."""

from __future__ import annotations

import os
import signal
import sys

# The exit code that shells report for a program ended by SIGPIPE.
READER_HAS_GONE = 128 + signal.SIGPIPE


def reader_has_gone() -> int:
    """The exit code for a BrokenPipeError. Also keeps Python from reporting the broken pipe again at exit."""
    discard_output()
    return READER_HAS_GONE


def discard_output() -> None:
    """Redirect standard output to /dev/null, so that Python does not try to write its buffer again at exit."""
    if sys.stdout is None:
        return
    try:
        own = sys.stdout.fileno()
    except (OSError, ValueError):  # a stream in memory
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, own)
    os.close(null)
