"""How much memory the keys and values of a target and its assistant may take. Never imports torch."""

from __future__ import annotations

import logging
import os
import threading

from ipex_assist import launch
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.machine import Machine
from ipex_assist.env.memory import read_memory, resident_bytes
from ipex_assist.env.nodes import usable_nodes
from ipex_assist.env.topology import read_topology
from ipex_assist.executors.memory_bookings import bookings
from ipex_assist.native.rows import BLOCK

log = logging.getLogger("ipex_assist")

LEAST_STATES = 2  # a sequence's, and a copy of it
DEFAULT_SEQUENCES = 64  # of the longest context: whoever needs room for more says so with --kv-memory
LEAST_BLOCKS = 32  # what measuring passes and drafts needs beside a short text
_MARGIN = 1 << 30  # bytes left free for the rest of this process and its neighbours …
_MARGIN_SHARE = 8  # … but at most one eighth of the free memory


class KvMemory:
    """The memory for keys and values, divided among the models that joined so that all have as many blocks."""

    def __init__(self, limit: int | None = None, share: float | None = None, most_tokens: int | None = None) -> None:
        """limit: bytes; None: what is free when the first block is needed, since the weights are loaded by then.

        share: the fraction of the memory that this process may use; by the launcher's plan where None.
        most_tokens: of all texts together, where that is known.
        """
        self.limit, self._share, self._most_tokens = limit, share, most_tokens
        self._joined = 0  # bytes of one block of each model together
        self._joined_states = 0  # and of the state of one sequence
        self._workspace = 0
        self._context = 0
        self._counts: tuple[int, int] | None = None  # blocks and states
        self._lock = threading.Lock()

    def join(self, block_bytes: int, context: int, workspace: int = 0, state_bytes: int = 0) -> None:
        """Add a model: bytes of one of its blocks, its longest context in tokens, and the bytes its passes need.

        state_bytes: of the state of one sequence, where its layers keep one.
        """
        self._joined += block_bytes
        self._joined_states += state_bytes
        self._workspace += workspace
        self._context = max(self._context, context)

    def room_for_passes(self) -> int:
        """Bytes that the buffers of a model's passes may have; 0 where nobody knows.

        What stays free beside keys and values in any case, or, of much memory, an eighth of it.
        """
        share = _planned_share() if self._share is None else self._share
        left = int(share * read_memory().available) - (self.limit or 0)
        return max(0, left) // _MARGIN_SHARE

    def blocks(self) -> int:
        """How many blocks each model gets; the first call decides. Raises IpexAssistError where not even one fits."""
        return self._decided()[0]

    def states(self) -> int:
        """How many states of sequences each model gets whose layers keep some. Raises as `blocks` does."""
        return self._decided()[1]

    def _decided(self) -> tuple[int, int]:
        with self._lock:
            if self._counts is None:
                share = _planned_share() if self._share is None else self._share
                with bookings(
                    share, usable_nodes()
                ) as booked:  # free memory is read while nobody else books some of it
                    others = booked.of_others()
                    self._counts = self._left(share, others) if self.limit is None else self._limited(others)
                    booked.book(self, self._counts[0] * self._joined + self._counts[1] * self._joined_states)
            return self._counts

    @property
    def _least(self) -> int:
        """Bytes of one block, and of as many states as any use needs."""
        return self._joined + LEAST_STATES * self._joined_states

    @property
    def _wanted(self) -> int:
        """Blocks for all texts that may be there at a time."""
        most = DEFAULT_SEQUENCES * -(-self._context // BLOCK)
        if self._most_tokens is None:
            return most
        return min(most, max(LEAST_BLOCKS, -(-self._most_tokens // BLOCK) + 1))

    def _divided(self, size: int) -> tuple[int, int]:
        """Blocks and states in `size` bytes, of which states take half at most: a text has one, and a block or more."""
        states = 0
        if self._joined_states:
            most = min(size // 2, size - self._joined) // self._joined_states  # beside a block of each
            if self._joined:
                most = min(most, size // (self._joined + self._joined_states))
            states = max(LEAST_STATES, min(2 * DEFAULT_SEQUENCES, most))
        left = size - states * self._joined_states
        if self._joined == 0:  # states alone: blocks take nothing
            return (self._wanted if left >= 0 else 0), states
        return left // self._joined, states

    def _limited(self, others: int) -> tuple[int, int]:
        assert self.limit is not None
        if self.limit < self._least:
            raise IpexAssistError(
                f"--kv-memory is {_mib(self.limit)}, and {BLOCK} tokens, the least there is, take "
                f"{_mib(self._least)}: give more"
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
        return self._divided(self.limit)

    def _left(self, share: float, others: int) -> tuple[int, int]:
        memory = read_memory()
        if not memory.available:  # unknown
            return self._wanted, 2 * DEFAULT_SEQUENCES if self._joined_states else 0

        def left_beside(others: int) -> int:
            left = memory.available - others
            if share < 1:  # neighbours that are still loading will need as much as this process has taken
                left = int(min(share * left, share * memory.total - resident_bytes(own=True)))
            return left

        left = left_beside(others)
        count, states = self._divided(room_in(left, self._workspace))
        if count < 1 and others:  # what is booked may never be taken
            left = left_beside(0)
            count, states = self._divided(room_in(left, self._workspace))
            if count >= 1:
                count = min(count, -(-self._context // BLOCK))
                log.warning(
                    "other processes of yours have booked %s of the %s that are available, and may need it: there may "
                    "not be enough for all",
                    _mib(others),
                    _mib(memory.available),
                )
        if count < 1:
            raise IpexAssistError(
                f"too little memory for keys and values: {BLOCK} tokens, the least there is, take "
                f"{_mib(self._least)}, passes need {_mib(self._workspace)}, and {_mib(max(0, left))} are left beside "
                "the weights. Use a smaller --precision or model, or --no-assisted"
            )
        return min(self._wanted, count), states


def room_in(left: int, workspace: int = 0) -> int:
    """How many of the `left` bytes beside the weights may hold keys and values. workspace: bytes that passes need."""
    return left - max(workspace, min(_MARGIN, max(0, left) // _MARGIN_SHARE))


def spare_beside(kv: int, workspace: int = 0) -> int:
    """The bytes that must be free beside `kv` bytes of keys and values: the inverse of `room_in`."""
    return max(workspace, min(_MARGIN, max(0, kv - 1) // (_MARGIN_SHARE - 1)))


def _planned_share() -> float:
    """The part of the memory which this process may use that its launcher gave it; its neighbours have the others."""
    plan = launch.inherited_plan(os.environ)
    return 1.0 if plan is None else share_of_memory(plan, read_topology())


def share_of_memory(plan: launch.LaunchPlan, machine: Machine) -> float:
    """The plan's part of the cores whose memory its process may use.

    Cores and not CPUs, since SMT siblings stay idle in most plans; and of a process by itself, whose memory may be that
    of all nodes, cores of its own nodes.
    """
    cpus = set(plan.mask)
    nodes = [node for node in machine.nodes if node.id in machine.allowed_nodes]
    if plan.instances == 1:
        nodes = [node for node in nodes if not cpus.isdisjoint(node.cpus)]
    near = [cpu for node in nodes for cpu in node.cpus] or machine.cpus
    own = len(machine.cores_within(cpus & set(near)))
    return own / len(machine.cores_within(near)) if own else 1.0


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
