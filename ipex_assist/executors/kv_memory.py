"""How much memory the keys and values of a target and its assistant may take. Never imports torch."""

from __future__ import annotations

import logging
import os
import threading

from ipex_assist import launch
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.memory import read_memory, resident_bytes
from ipex_assist.executors.blocks import BLOCK
from ipex_assist.executors.memory_bookings import bookings

log = logging.getLogger("ipex_assist")

DEFAULT_SEQUENCES = 64  # of the longest context: whoever needs room for more says so with --kv-memory
_MARGIN = 1 << 30  # bytes left free for the rest of this process and its neighbours …
_MARGIN_SHARE = 8  # … but at most one eighth of the free memory


class KvMemory:
    """The memory for keys and values, divided among the models that joined so that all have as many blocks."""

    def __init__(self, limit: int | None = None, share: float | None = None) -> None:
        """limit: bytes; None: what is free when the first block is needed, since the weights are loaded by then.

        share: the fraction of the machine's memory that this process may use; by the launcher's plan where None.
        """
        self.limit, self._share = limit, share
        self._joined = 0  # bytes of one block of each model together
        self._workspace = 0
        self._context = 0
        self._count: int | None = None
        self._lock = threading.Lock()

    def join(self, block_bytes: int, context: int, workspace: int = 0) -> None:
        """Add a model: bytes of one of its blocks, its longest context in tokens, and the bytes its passes need."""
        self._joined += block_bytes
        self._workspace += workspace
        self._context = max(self._context, context)

    def blocks(self) -> int:
        """How many blocks each model gets; the first call decides. Raises IpexAssistError where not even one fits."""
        with self._lock:
            if self._count is None:
                share = _planned_share() if self._share is None else self._share
                with bookings(share) as booked:  # free memory is read while nobody else books some of it
                    others = booked.of_others()
                    self._count = self._left(share, others) if self.limit is None else self._limited(others)
                    booked.book(self, self._count * self._joined)
            return self._count

    def _limited(self, others: int) -> int:
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
        if available and self.limit + self._workspace > available - others:
            log.warning(
                "--kv-memory is %s, and other processes of yours count on %s of the %s that are available: "
                "there may not be enough for all",
                _mib(self.limit),
                _mib(others),
                _mib(available),
            )
        return self.limit // self._joined

    def _left(self, share: float, others: int) -> int:
        wanted = DEFAULT_SEQUENCES * -(-self._context // BLOCK)
        memory = read_memory()
        if not memory.available:  # unknown
            return wanted
        left = memory.available - others
        if share < 1:  # neighbours that are still loading will need as much as this process has taken
            left = int(min(share * left, share * memory.total - resident_bytes(own=True)))
        count = room_in(left, self._workspace) // self._joined
        if count < 1:
            booked = f" and the {_mib(others)} that other processes of yours have booked" if others else ""
            raise IpexAssistError(
                f"too little memory for keys and values: {BLOCK} tokens, the least there is, take "
                f"{_mib(self._joined)}, passes need {_mib(self._workspace)}, and {_mib(max(0, left))} are left beside "
                f"the weights{booked}. Use a smaller --precision or model, or --no-assisted"
            )
        return min(wanted, count)


def room_in(left: int, workspace: int = 0) -> int:
    """How many of the `left` bytes beside the weights may hold keys and values. workspace: bytes that passes need."""
    return left - max(workspace, min(_MARGIN, max(0, left) // _MARGIN_SHARE))


def spare_beside(kv: int, workspace: int = 0) -> int:
    """The bytes that must be free beside `kv` bytes of keys and values: the inverse of `room_in`."""
    return max(workspace, min(_MARGIN, max(0, kv - 1) // (_MARGIN_SHARE - 1)))


def _planned_share() -> float:
    """The fraction of the machine's CPUs that the launcher gave this process; its neighbours have the others."""
    plan = launch.inherited_plan(os.environ)
    cpus = os.cpu_count()
    return min(1.0, len(plan.cpus) / cpus) if plan is not None and cpus else 1.0


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
