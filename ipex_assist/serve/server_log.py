"""The server's messages to its operator, on standard error."""

from __future__ import annotations

import sys
from contextlib import suppress

from ipex_assist.env.phase_display import hide_phases

MOST_REMEMBERED = 1000


class ServerLog:
    """Prints lines to standard error, which may be closed. verbose: repeat engines' lines, with their number."""

    def __init__(self, verbose: bool = False) -> None:
        self.verbose = verbose
        self._said: set[str] = set()

    def say(self, line: str) -> None:
        """Print a message."""
        with suppress(OSError, ValueError):
            if sys.stderr is not None:
                hide_phases()
                print(f"ipex-assist: {line}", file=sys.stderr, flush=True)

    def once(self, line: str) -> None:
        """Print a message unless it was printed before."""
        if line not in self._said:
            if len(self._said) < MOST_REMEMBERED:
                self._said.add(line)
            self.say(line)

    def heard(self, engine: int, line: str) -> None:
        """Print an engine's line of standard error; without verbose only once, as engines write the same lines."""
        if self.verbose:
            self.say(f"engine {engine}: {line}")
        else:
            self.once(line)
