"""What a server says to whoever runs it, on standard error."""

from __future__ import annotations

import sys
from contextlib import suppress

MOST_REMEMBERED = 1000


class ServerLog:
    """Lines on standard error, which may be closed. verbose: say which engine wrote what, and say it each time."""

    def __init__(self, verbose: bool = False) -> None:
        self.verbose = verbose
        self._said: set[str] = set()

    def say(self, line: str) -> None:
        """Print a message."""
        with suppress(OSError, ValueError):
            if sys.stderr is not None:
                print(f"ipex-assist: {line}", file=sys.stderr, flush=True)

    def once(self, line: str) -> None:
        """Print a message that was not printed before."""
        if line not in self._said:
            if len(self._said) < MOST_REMEMBERED:
                self._said.add(line)
            self.say(line)

    def heard(self, engine: int, line: str) -> None:
        """An engine has written a line to its standard error: they are alike, and so are their messages."""
        if self.verbose:
            self.say(f"engine {engine}: {line}")
        else:
            self.once(line)
