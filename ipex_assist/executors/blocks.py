"""Blocks of keys and values: which of a pool's blocks are free, and how many hold on to each. Never imports torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.turn import Turn

BLOCK = 256  # positions of a block; kernels.h: BLOCK_POSITIONS

# Of what every pool's methods change; held for microseconds.
_bookkeeping = Turn()


class NoBlocksError(IpexAssistError):
    """A pool has fewer free blocks than are wanted. Nothing was taken."""

    def __init__(self, wanted: int, free: int, count: int, size: int = BLOCK) -> None:
        self.wanted, self.free, self.count = wanted, free, count
        super().__init__(
            f"no memory for keys and values: {wanted} more blocks of {size} tokens are needed, and {free} of {count} "
            "are free. Let other texts end first, use fewer --max-new-tokens, or give more memory with --kv-memory"
        )


class BlockPool:
    """Blocks of `size` tokens, numbered from 0 to `count` - 1; threads may use it together.

    A block that is taken has one reference. It is free again when as many were released as were taken and shared. The
    block that was freed last is taken first: its memory is there already, and may be in a cache.
    """

    def __init__(self, count: int, size: int = BLOCK, discard: Callable[[Sequence[int]], None] | None = None) -> None:
        """discard: gives the memory of free blocks back. It is called when the last text has gone, for all blocks but
        as many as that one had: a burst of texts does not hold its memory for ever.
        """
        self.size, self.count = size, count
        self._discard = discard
        self._references: dict[int, int] = {}  # of blocks that are not free
        self._warm: list[int] = []  # free blocks that were written before, the last freed at the end
        self._cold: list[int] = []  # free blocks whose memory was given back
        self._unused = 0  # blocks from here on were never taken
        self._released: deque[Sequence[int]] = deque()  # what `release_soon` was told and nobody has done yet

    @property
    def free(self) -> int:
        """Blocks that can be taken."""
        with _bookkeeping:
            self._settle()
            return self._free()

    def take(self) -> int:
        """A free block, with one reference. Raises NoBlocksError where there is none."""
        return self.take_many(1)[0]

    def take_many(self, number: int) -> list[int]:
        """So many free blocks, or NoBlocksError and none of them."""
        with _bookkeeping:
            self._settle()
            if number > self._free():
                raise NoBlocksError(number, self._free(), self.count, self.size)
            taken = [self._take() for _ in range(number)]
            self._references.update(dict.fromkeys(taken, 1))
            return taken

    def share(self, block: int) -> None:
        """One more reference to a block that is not free."""
        with _bookkeeping:
            self._references[block] += 1

    def release(self, block: int) -> None:
        """One reference less."""
        self.release_many([block])

    def release_many(self, blocks: Sequence[int]) -> None:
        """One reference less to each of them; what then has none is free."""
        with _bookkeeping:
            self._settle()
            self._release(blocks)

    def release_soon(self, blocks: Sequence[int]) -> None:
        """`release_many` for destructors, which run at any moment and in any thread: it never waits."""
        self._released.append(blocks)
        # Whoever holds the lock may have looked already: then the next one does it.
        if _bookkeeping.take_at_once():
            try:
                self._settle()
            finally:
                _bookkeeping.give_back()

    def references(self, block: int) -> int:
        """How many hold on to a block; 0 where it is free."""
        with _bookkeeping:
            self._settle()
            return self._references.get(block, 0)

    def _free(self) -> int:
        return self.count - len(self._references)

    def _take(self) -> int:
        for free in (self._warm, self._cold):
            if free:
                return free.pop()
        self._unused += 1
        return self._unused - 1

    def _settle(self) -> None:
        while self._released:
            self._release(self._released.popleft())

    def _release(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):  # so that a text's first blocks are the next one's
            left = self._references[block] - 1
            if left:
                self._references[block] = left
            else:
                del self._references[block]
                self._warm.append(block)
        if not self._references and self._discard is not None and len(self._warm) > len(blocks):
            beyond = len(self._warm) - len(blocks)
            self._discard(self._warm[:beyond])
            self._cold += self._warm[:beyond]
            del self._warm[:beyond]
