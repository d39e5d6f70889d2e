"""How much memory the keys and values of a target and its assistant may take. Never imports torch."""

from __future__ import annotations

import os
import threading

from ipex_assist import launch
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.memory import read_memory, resident_bytes
from ipex_assist.executors.blocks import BLOCK

TEXTS = 64  # of the longest context: nobody needs more without saying so
_MARGIN = 1 << 30  # of what is left: for whatever else this process and its neighbours will want …
_MARGIN_SHARE = 8  # … but never more than one part of so many


class KvMemory:
    """Memory for keys and values, of which each model that joined gets its part: all hold as many blocks."""

    def __init__(self, limit: int | None = None, share: float | None = None) -> None:
        """limit: bytes; None is what is left when the first block is wanted, the weights being in memory by then.

        share: the part of the machine's memory that is this process's; by the launcher's plan where None.
        """
        self.limit, self._share = limit, share
        self._joined = 0  # bytes of a block of each
        self._workspace = 0
        self._context = 0
        self._count: int | None = None
        self._lock = threading.Lock()

    def join(self, block_bytes: int, context: int, workspace: int = 0) -> None:
        """One more model, with its bytes of a block, the most tokens it can read, and what its passes need."""
        self._joined += block_bytes
        self._workspace += workspace
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
                f"--kv-memory is {_mib(self.limit)}, and {BLOCK} tokens, the least there is, take "
                f"{_mib(self._joined)}: give more"
            )
        available = read_memory().available
        if available and self.limit + self._workspace > available:
            beside = f", and passes need {_mib(self._workspace)}" if self._workspace else ""
            raise IpexAssistError(
                f"--kv-memory is {_mib(self.limit)}{beside}, and {_mib(available)} are available beside the weights: "
                "give less, or none for what is left"
            )
        return self.limit // self._joined

    def _left(self) -> int:
        wanted = TEXTS * -(-self._context // BLOCK)
        memory = read_memory()
        if not memory.available:  # nobody knows
            return wanted
        left = memory.available
        share = _planned_share() if self._share is None else self._share
        if share < 1:  # neighbours that have not loaded yet will take as much as this process has
            left = int(min(share * left, share * memory.total - resident_bytes(own=True)))
        count = room_in(left, self._workspace) // self._joined
        if count < 1:
            raise IpexAssistError(
                f"too little memory for keys and values: {BLOCK} tokens, the least there is, take "
                f"{_mib(self._joined)}, passes need {_mib(self._workspace)}, and {_mib(max(0, left))} are left beside "
                "the weights. Use a smaller --precision or model, or --no-assisted"
            )
        return min(wanted, count)


def room_in(left: int, workspace: int = 0) -> int:
    """Of `left` bytes beside the weights, how many become keys and values. workspace: what passes need."""
    return left - max(workspace, min(_MARGIN, max(0, left) // _MARGIN_SHARE))


def spare_beside(kv: int, workspace: int = 0) -> int:
    """The least that must be left beside `kv` bytes, so that `room_in` gives these: its inverse."""
    return max(workspace, min(_MARGIN, max(0, kv - 1) // (_MARGIN_SHARE - 1)))


def _planned_share() -> float:
    """The part of the machine's processors that the launcher gave this process: its neighbours have the others."""
    plan = launch.inherited_plan(os.environ)
    cpus = os.cpu_count()
    return min(1.0, len(plan.cpus) / cpus) if plan is not None and cpus else 1.0


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
