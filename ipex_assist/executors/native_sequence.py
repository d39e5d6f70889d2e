"""A text's keys and values on the native executor: a table of blocks and a length."""

from __future__ import annotations

import ctypes
from collections import abc

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.blocks import BLOCK, BlockPool
from ipex_assist.executors.interface import Model, check_length

LONGEST = (1 << 31) - BLOCK  # positions that the core can count


class NativeSequence:
    """A Sequence (see executors/interface.py): blocks of the model's pool, taken as the text grows.

    A block that others hold on to as well is copied before this text writes to it.
    """

    def __init__(
        self,
        model: Model,
        pool: BlockPool,
        capacity: int,
        prompt_length: int | None = None,
        blocks: abc.Sequence[int] = (),
    ) -> None:
        """pool: the model's, of whose blocks `blocks` are the first."""
        if not 1 <= capacity <= LONGEST:
            raise IpexAssistError(f"a sequence with room for {capacity} tokens: it may be 1 to {LONGEST}")
        if len(blocks) * BLOCK >= capacity + BLOCK:
            raise IpexAssistError(f"{len(blocks)} blocks of {BLOCK} tokens in a sequence of {capacity}")
        self.model, self.capacity, self.prompt_length = model, capacity, prompt_length
        self.length = min(len(blocks) * BLOCK, capacity)
        self.turned_as = prompt_length or 0  # the prompt's length by which its positions turn (rope.py, "dynamic")
        self.table = (ctypes.c_int32 * -(-capacity // BLOCK))()  # the core reads it; the first `count` are blocks
        self.count = 0
        self._pool = pool
        for block in blocks:
            self._pool.share(block)
            self.append(block)

    def __del__(self) -> None:
        if getattr(self, "count", 0):
            self._pool.release_soon(self.table[: self.count])

    @property
    def blocks(self) -> list[int]:
        """The blocks of its positions 0 to 255, 256 to 511, …"""
        return self.table[: self.count]

    def append(self, block: int) -> None:
        """Take a block over, with the caller's reference to it, for the next positions that have none."""
        self.table[self.count] = block
        self.count += 1

    def truncate(self, length: int) -> None:
        """Forget all tokens from `length` on; blocks that held nothing else are free, unless others share them."""
        check_length(self, length)
        self.length = length
        needed = -(-length // BLOCK)
        if self.count > needed:
            dropped = self.table[needed : self.count]
            self.count = needed
            self._pool.release_many(dropped)

    def fork(self, length: int | None = None) -> NativeSequence:
        """A sequence of the first `length` tokens, all where None, and of the same capacity; it shares their blocks."""
        length = self.length if length is None else length
        check_length(self, length)
        made = NativeSequence(self.model, self._pool, self.capacity, self.prompt_length)
        for block in self.table[: -(-length // BLOCK)]:
            self._pool.share(block)
            made.append(block)
        made.length, made.turned_as = length, self.turned_as
        return made

    def begin(self, tokens: int) -> None:
        """Called before `tokens` tokens are appended: without a prompt length, the first tokens are the prompt."""
        if self.length == 0 and self.prompt_length is None:
            self.turned_as = tokens

    def shared_places(self, rows: int) -> list[int]:
        """Places of the table that `rows` further rows would write to, and whose blocks are not this text's alone."""
        first, last = self.length // BLOCK, min(self.count, -(-(self.length + rows) // BLOCK))
        return [place for place in range(first, last) if self._pool.references(self.table[place]) > 1]

    def missing(self, rows: int) -> int:
        """How many blocks must be appended for `rows` further rows."""
        return max(0, -(-(self.length + rows) // BLOCK) - self.count)


def reserve(
    pool: BlockPool, wants: abc.Sequence[tuple[NativeSequence, int]], copy: abc.Callable[[int, int], None]
) -> None:
    """Blocks of their own for the next rows of each sequence. Raises NoBlocksError before anything is changed.

    copy: fills the second block with what the first holds.
    """
    places = [(sequence, sequence.shared_places(rows)) for sequence, rows in wants]
    number = sum(sequence.missing(rows) for sequence, rows in wants) + sum(len(shared) for _, shared in places)
    if not number:
        return
    fresh = pool.take_many(number)
    for sequence, shared in places:
        for place in shared:
            old, new = sequence.table[place], fresh.pop()
            if place * BLOCK < sequence.length:
                copy(old, new)
            sequence.table[place] = new
            pool.release(old)
    for sequence, rows in wants:
        for _ in range(sequence.missing(rows)):
            sequence.append(fresh.pop())
