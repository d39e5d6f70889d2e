"""The KV block pool: which blocks are free, and a reference count for each of the others. Never imports torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.pass_lock import ForkSafeLock
from ipex_assist.native.rows import BLOCK

# Guards the fields of every pool; held for microseconds.
_bookkeeping = ForkSafeLock()


class NoBlocksError(IpexAssistError):
    """A pool has fewer free blocks than were asked for. Nothing was taken."""

    def __init__(self, wanted: int, free: int, count: int, size: int = BLOCK) -> None:
        self.wanted, self.free, self.count = wanted, free, count
        super().__init__(
            f"no memory for keys and values: {wanted} more blocks of {size} tokens are needed, and {free} of {count} "
            "are free. Let other requests end first, use fewer --max-new-tokens, or give more memory with --kv-memory"
        )


class BlockPool:
    """Blocks of `size` tokens, numbered from 0 to `count` - 1. Thread-safe.

    Taking a block gives it one reference, `share` adds one, `release` drops one; at zero the block is free again. The
    block freed last is taken first: its memory is already allocated, and may still be in a cache.
    """

    def __init__(self, count: int, size: int = BLOCK, discard: Callable[[Sequence[int]], None] | None = None) -> None:
        """discard: gives the memory of free blocks back to the system. It is called when the last sequence has ended,
        and spares as many blocks as that sequence had: a burst of requests does not hold its memory for ever.
        """
        self.size, self.count = size, count
        self._discard = discard
        self._references: dict[int, int] = {}  # reference count by block, of blocks that are not free
        self._warm: list[int] = []  # free blocks whose memory is allocated, the last freed at the end
        self._cold: list[int] = []  # free blocks whose memory was given back
        self._unused = 0  # the first block that was never taken
        self._released: deque[Sequence[int]] = deque()  # blocks passed to `release_soon` and not yet released

    @property
    def free(self) -> int:
        """How many blocks can be taken."""
        with _bookkeeping:
            self._release_pending()
            return self._free()

    def take(self) -> int:
        """Take a free block; it has one reference. Raises NoBlocksError where there is none."""
        return self.take_many(1)[0]

    def take_many(self, number: int) -> list[int]:
        """Take `number` free blocks, each with one reference; none, and NoBlocksError, where there are fewer."""
        with _bookkeeping:
            self._release_pending()
            if number > self._free():
                raise NoBlocksError(number, self._free(), self.count, self.size)
            taken = [self._take() for _ in range(number)]
            self._references.update(dict.fromkeys(taken, 1))
            return taken

    def share(self, block: int) -> None:
        """Add a reference to a block that is not free."""
        with _bookkeeping:
            self._references[block] += 1

    def release(self, block: int) -> None:
        """Drop a reference to a block; at zero it is free."""
        self.release_many([block])

    def release_many(self, blocks: Sequence[int]) -> None:
        """Drop a reference to each of these blocks; those at zero are free."""
        with _bookkeeping:
            self._release_pending()
            self._release(blocks)

    def release_soon(self, blocks: Sequence[int]) -> None:
        """`release_many` for destructors, which run at any moment and in any thread: it never waits for the lock."""
        self._released.append(blocks)
        # Where the lock is held, the next call that takes it releases these.
        if _bookkeeping.try_acquire():
            try:
                self._release_pending()
            finally:
                _bookkeeping.release()

    def references(self, block: int) -> int:
        """The reference count of a block; 0 where it is free."""
        if self._released:
            with _bookkeeping:
                self._release_pending()
        return self._references.get(block, 0)

    def _free(self) -> int:
        return self.count - len(self._references)

    def _take(self) -> int:
        for free in (self._warm, self._cold):
            if free:
                return free.pop()
        self._unused += 1
        return self._unused - 1

    def _release_pending(self) -> None:
        while self._released:
            self._release(self._released.popleft())

    def _release(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):  # so that the next sequence takes this one's first blocks first
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
