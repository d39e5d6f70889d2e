"""Slots for the states of sequences: which of them has one, and up to where its state goes. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ipex_assist.executors.blocks import BlockPool, NoBlocksError
from ipex_assist.native.rows import PENDING_ROWS


class NoStatesError(NoBlocksError):
    """A pool has no free slot. Nothing was taken."""

    def __init__(self, count: int) -> None:
        super().__init__(1, 0, count)
        self.args = (
            f"no memory for the state of one more sequence: all {count} are in use. Let other requests end first, or "
            "give more memory with --kv-memory",
        )


class HasSlots(Protocol):
    """Memory of slots."""

    def copy(self, source: int, target: int) -> None:
        """Fill one slot with what another holds."""
        ...


class StatePool:
    """The slots of a model, numbered from 0; like BlockPool, with memory that can be copied. Thread-safe."""

    def __init__(self, count: int, memory: HasSlots, discard: Callable[..., None] | None = None) -> None:
        self.count, self.memory = count, memory
        self._slots = BlockPool(count, 1, discard)

    @property
    def free(self) -> int:
        """How many slots can be taken."""
        return self._slots.free

    def take(self) -> int:
        """Take a free slot. Raises NoStatesError where there is none."""
        try:
            return self._slots.take()
        except NoBlocksError:
            raise NoStatesError(self.count) from None

    def release_soon(self, slot: int) -> None:
        """Give a slot back: never waits for a lock, so that destructors may call it."""
        self._slots.release_soon([slot])


class RecurrentState:
    """The state of a sequence (of recurrent layers, windows and pools): the slot, and after which first tokens it is.

    What rows after these `settled` tokens need is kept, of at most PENDING_ROWS. `confirmed`: the tokens up to there
    stay, so that the next pass may move the state to them.
    """

    def __init__(self, pool: StatePool) -> None:
        """Take a slot. Raises NoStatesError."""
        self.pool, self.slot = pool, pool.take()
        self.settled = self.confirmed = 0

    def __del__(self) -> None:
        if hasattr(self, "slot"):
            self.pool.release_soon(self.slot)

    def truncate(self, length: int) -> None:
        """Confirm the tokens before `length`, which is not below `settled`, or 0 to begin again."""
        self.confirmed = length
        self.settled = self.settled if length else 0

    def after(self, start: int, end: int, last: int) -> int:
        """Where the state is after a pass over tokens start … end - 1, after which rows up to `last` follow."""
        return min(end, max(self.settled, min(self.confirmed, start), last - PENDING_ROWS))

    def copy(self) -> RecurrentState:
        """The same in another slot. Raises NoStatesError."""
        made = RecurrentState(self.pool)
        self.pool.memory.copy(self.slot, made.slot)
        made.settled, made.confirmed = self.settled, self.confirmed
        return made
