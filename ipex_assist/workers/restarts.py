"""When a worker that died is restarted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

# Seconds before an instance is restarted, by how often it ended in a row without finishing a prompt.
RESTART_DELAYS = (0.0, 1.0, 2.0, 5.0)


@dataclass
class RestartState:
    """Whether a worker runs, and how often it failed. restart_at: by time.monotonic, when a dead one is restarted."""

    alive: bool = False
    ready: bool = False
    was_ready: bool = False
    given_up: bool = False
    ends_in_a_row: int = 0
    restart_at: float = 0.0

    def count_end(self, *, refused: bool, delays: Sequence[float] = RESTART_DELAYS, for_ever: bool = False) -> None:
        """Decide whether and when it is restarted; for_ever: without limit, if it was ever ready.

        One that reports itself that it cannot load is given up at once, unless it could load before: then memory may
        have been short for a moment.
        """
        self.alive = self.ready = False
        self.ends_in_a_row += 1
        too_often = self.ends_in_a_row > len(delays) and not (for_ever and self.was_ready)
        self.given_up = too_often or (refused and not self.was_ready)
        if not self.given_up:
            self.restart_at = time.monotonic() + delays[min(self.ends_in_a_row, len(delays)) - 1]
