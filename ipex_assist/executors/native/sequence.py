"""A sequence of the native executor: a block table and a length."""

from __future__ import annotations

import ctypes
from collections import abc

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.blocks import BlockPool
from ipex_assist.executors.image_rows import PromptImages
from ipex_assist.executors.interface import Model, check_length, check_rollback
from ipex_assist.executors.recurrent_states import RecurrentState, StatePool
from ipex_assist.native.adapter import PackedAdapter
from ipex_assist.native.rows import BLOCK

LONGEST = (1 << 31) - BLOCK  # most tokens of a sequence: the core counts positions in int32


class NativeSequence:
    """A Sequence (see executors/interface.py) in blocks of the model's pool, taken as it grows.

    A block that other sequences share is copied before this one writes to it.
    """

    def __init__(
        self,
        model: Model,
        pool: BlockPool,
        capacity: int,
        prompt_length: int | None = None,
        blocks: abc.Sequence[int] = (),
        states: StatePool | None = None,
        state: RecurrentState | None = None,
        spare: int = 0,
    ) -> None:
        """pool: the model's, of whose blocks `blocks` are the first. states: of a model whose layers keep some.

        state: that of a cached prefix, which is copied; else the sequence begins without one. spare: room for rows
        that a pass writes after the last token, which do not stay.
        """
        if not 1 <= capacity <= LONGEST:
            raise IpexAssistError(f"a sequence with room for {capacity} tokens: it may be 1 to {LONGEST}")
        if len(blocks) * BLOCK >= capacity + BLOCK:
            raise IpexAssistError(f"{len(blocks)} blocks of {BLOCK} tokens in a sequence of {capacity}")
        self.model, self.capacity, self.prompt_length = model, capacity, prompt_length
        self.length = min(len(blocks) * BLOCK, capacity)
        # The length by which by-length rope (dynamic, longrope) rotates the rows of the prompt; 0 where it is unknown.
        self.rope_prompt_length = prompt_length or 0
        self._spare = spare
        self.table = (
            ctypes.c_int32 * -(-(capacity + spare) // BLOCK)
        )()  # the core reads it; the first `count` are blocks
        self.count = 0
        self.adapter: tuple[PackedAdapter, float] | None = None  # of all its rows, and its scale
        self.images: PromptImages | None = None
        self._pool = pool
        self._states = states
        self.state = state.copy() if state is not None else None
        for block in blocks:
            self._pool.share(block)
            self.append(block)

    def __del__(self) -> None:
        if getattr(self, "count", 0):
            self._pool.release_soon(self.table[: self.count])

    @property
    def blocks(self) -> list[int]:
        """The blocks of positions 0 to 255, 256 to 511, …"""
        return self.table[: self.count]

    @property
    def settled(self) -> int:
        """The fewest tokens that it can be truncated to, but for 0; 0 without a state."""
        return self.state.settled if self.state is not None else 0

    def take_state(self) -> None:
        """Have a slot for the state, where the model's layers keep one. Raises NoStatesError."""
        if self._states is not None and self.state is None:
            self.state = RecurrentState(self._states)

    def give_state(self) -> RecurrentState | None:
        """The state, which is the caller's from now on: the sequence is of no more use."""
        state, self.state = self.state, None
        return state

    def append(self, block: int) -> None:
        """Add a block at the end of the table. The caller's reference to it becomes this sequence's."""
        self.table[self.count] = block
        self.count += 1

    def truncate(self, length: int) -> None:
        """Forget all tokens from position `length` on, and release the blocks that held only those."""
        if not 0 <= length <= self.length:
            check_length(self, length)
        if self.state is not None:
            check_rollback(length, self.state.settled)
            self.state.truncate(length)
        self.length = length
        if length <= (self.count - 1) * BLOCK:
            self.free_unused()

    def free_unused(self) -> None:
        """Release the blocks after those of the present length."""
        needed = -(-self.length // BLOCK)
        if self.count > needed:
            unneeded = self.table[needed : self.count]
            self.count = needed
            self._pool.release_many(unneeded)

    def fork(self, length: int | None = None) -> NativeSequence:
        """A new sequence of the same capacity with the first `length` tokens (all where None), sharing their blocks."""
        length = self.length if length is None else length
        check_length(self, length)
        check_rollback(length, self.settled)
        made = NativeSequence(
            *(self.model, self._pool, self.capacity, self.prompt_length, (), self._states),
            self.state if length else None,
            self._spare,
        )
        for block in self.table[: -(-length // BLOCK)]:
            self._pool.share(block)
            made.append(block)
        made.length, made.rope_prompt_length = length, self.rope_prompt_length
        made.adapter, made.images = self.adapter, self.images
        if made.state is not None:
            made.state.truncate(length)
        return made

    def begin(self, tokens: int) -> None:
        """To be called before tokens are appended. Without a given prompt length, the first call is the prompt."""
        if self.length == 0 and self.prompt_length is None:
            self.rope_prompt_length = tokens

    def blocks_for(self, rows: int) -> int:
        """How many blocks the next `rows` rows take: those that are missing, and copies of shared ones."""
        first, end = self.length // BLOCK, -(-(self.length + rows) // BLOCK)
        if end - first == 1 and end <= self.count:  # nearly always
            return int(self._pool.references(self.table[first]) > 1)
        number = max(0, end - self.count)
        for index in range(first, min(end, self.count)):
            number += self._pool.references(self.table[index]) > 1
        return number

    def shared_indices(self, rows: int) -> list[int]:
        """Indices of the table that the next `rows` rows would write to and whose blocks other sequences share."""
        first, last = self.length // BLOCK, min(self.count, -(-(self.length + rows) // BLOCK))
        return [index for index in range(first, last) if self._pool.references(self.table[index]) > 1]

    def missing(self, rows: int) -> int:
        """How many blocks must be appended for the next `rows` rows."""
        return max(0, -(-(self.length + rows) // BLOCK) - self.count)


def reserve(
    pool: BlockPool, wants: abc.Sequence[tuple[NativeSequence, int]], copy: abc.Callable[[int, int], None]
) -> None:
    """Give each sequence unshared blocks for its next rows. Raises NoBlocksError before any change.

    wants: (sequence, number of rows). copy: copies the first block's contents into the second.
    """
    if not sum([sequence.blocks_for(rows) for sequence, rows in wants]):
        return
    indices = [(sequence, sequence.shared_indices(rows)) for sequence, rows in wants]
    number = sum(sequence.missing(rows) for sequence, rows in wants) + sum(len(shared) for _, shared in indices)
    fresh = pool.take_many(number)
    for sequence, shared in indices:
        for index in shared:
            old, new = sequence.table[index], fresh.pop()
            if index * BLOCK < sequence.length:
                copy(old, new)
            sequence.table[index] = new
            pool.release(old)
    for sequence, rows in wants:
        for _ in range(sequence.missing(rows)):
            sequence.append(fresh.pop())
