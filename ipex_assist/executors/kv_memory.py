"""How much memory the keys and values of a target and its assistant may take. Never imports torch."""

from __future__ import annotations

import os
import threading

from ipex_assist import launch
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.memory import read_memory
from ipex_assist.executors.blocks import BLOCK

TEXTS = 64  # of the longest context: nobody needs more without saying so
_MARGIN = 1 << 30  # of what is left: for whatever else this process and its neighbours will want …
_MARGIN_SHARE = 8  # … but never more than one part of so many


class KvMemory:
    """Memory for keys and values, of which each model that joined gets its part: all hold as many blocks."""

    def __init__(self, limit: int | None = None) -> None:
        """limit: bytes; None is what is left when the first block is wanted, the weights being in memory by then."""
        self.limit = limit
        self._joined = 0  # bytes of a block of each
        self._context = 0
        self._count: int | None = None
        self._lock = threading.Lock()

    def join(self, block_bytes: int, context: int) -> None:
        """One more model, with its bytes of a block and the most tokens it can read."""
        self._joined += block_bytes
        self._context = max(self._context, context)

    def blocks(self) -> int:
        """How many blocks each model has; decided by the first call. Raises IpexAssistError where not even one fits."""
        with self._lock:
            if self._count is None:
                self._count = self._limited() if self.limit is not None else self._left()
            return self._count

    def _limited(self) -> int:
        assert self.limit is not None
        if self.limit < self._joined:
            raise IpexAssistError(
                f"--kv-memory is {self.limit / (1 << 20):.1f} MiB, and {BLOCK} tokens, the least there is, take "
                f"{self._joined / (1 << 20):.1f} MiB: give more"
            )
        available = read_memory().available
        if available and self.limit > available:
            raise IpexAssistError(
                f"--kv-memory is {self.limit / (1 << 30):.1f} GiB, and {available / (1 << 30):.1f} GiB are available "
                "beside the weights: give less, or none for what is left"
            )
        return self.limit // self._joined

    def _left(self) -> int:
        wanted = TEXTS * -(-self._context // BLOCK)
        available = read_memory().available
        if not available:  # nobody knows
            return wanted
        left = int((available - min(_MARGIN, available // _MARGIN_SHARE)) * _share_of_machine())
        return max(1, min(wanted, left // self._joined))


def _share_of_machine() -> float:
    """The part of the machine's processors that the launcher gave this process: its neighbours have the others."""
    plan = launch.inherited_plan(os.environ)
    cpus = os.cpu_count()
    return min(1.0, len(plan.cpus) / cpus) if plan is not None and cpus else 1.0
