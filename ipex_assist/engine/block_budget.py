"""KV memory of running requests: block allocation, admission and the prefix cache. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import Any, cast

from ipex_assist.engine.prefix_cache import CachedPrefix, Prefixes
from ipex_assist.engine.request import Request
from ipex_assist.executors.interface import ANY_ROWS, HasBlocks, HasSlot, Model, Rows
from ipex_assist.executors.recurrent_states import RecurrentState


def _given(request: Request) -> dict[str, Any]:
    """Arguments of `new_sequence`, for models that know of them."""
    given = {"adapter": request.adapter, "images": request.images}
    return {name: value for name, value in given.items() if value is not None}


class BlockBudget:
    """Allocates sequences within the block pool. Without a pool, sequences own their memory and nothing is counted."""

    def __init__(self, target: Model, prefixes: Prefixes | None) -> None:
        self._target, self._blocks = target, target.blocks
        self._states = target.states
        if target.exact_rows < ANY_ROWS:  # chunks of a prompt would not give the same bits as the whole prompt
            prefixes = None
        # Rotary embeddings that depend on the prompt's length (dynamic, longrope) make cached keys specific to it.
        by_length = any(rope.by_length for rope in target.spec.ropes)
        self._prefixes = None if by_length else prefixes

    def admits(self, request: Request) -> bool:
        """Whether there are blocks for all tokens a request has to read, and one block more."""
        if self._blocks is None:
            return True
        if not self._free_state():
            return False
        size = self._blocks.size
        return self.free_up(len(request.tokens) // size + 1 - self._cached_prefix(request).length // size)

    def _free_state(self) -> bool:
        """Have a free slot for the state of a sequence, if the model has any. Returns False where there is none."""
        while self._states is not None and self._states.free < 1:
            if self._prefixes is None or not self._prefixes.evict():
                return False
        return True

    def begin(self, request: Request) -> int:
        """Create the sequence of a request; returns how many tokens it has from the prefix cache.

        Raises IpexAssistError if there is not enough memory.
        """
        if self._blocks is None:
            request.sequence = self._target.new_sequence(request.end, **_given(request))
        else:
            self._free_state()
            found = self._cached_prefix(request)
            request.sequence = self._target.new_sequence(
                request.end, request.prompt_length, found.blocks, found.state, **_given(request)
            )
            if self._states is not None:
                cast(HasSlot, request.sequence).take_state()
            request.sequence.truncate(found.length)
            request.branch = found.branch
        return request.sequence.length

    def _cached_prefix(self, request: Request) -> CachedPrefix:
        if self._prefixes is None or request.needs_prompt_logits:
            return CachedPrefix([], 0)
        return self._prefixes.find(request.prefix_keys(len(request.tokens) - 1), request.adapter)

    def keep(self, request: Request, *, goes_on: bool = False) -> None:
        """Add what a request has read to the prefix cache.

        goes_on: the request writes to its last, partly filled block, which is left out; but not where there are
        states, which need it: then the request will write to a copy.
        """
        if self._prefixes is None or self._blocks is None or request.sequence is None:
            return
        size, length, state = self._blocks.size, request.sequence.length, None
        if self._states is not None:
            if not self._prefixes.wants(request.prefix_keys(length), request.adapter):
                return
            sequence = cast(HasSlot, request.sequence)
            state = self._copied_state(sequence) if goes_on else sequence.give_state()
        elif goes_on:
            length -= length % size
        held = cast(HasBlocks, request.sequence).blocks
        self._prefixes.keep(request.prefix_keys(length), held[: -(-length // size)], state, request.adapter)

    def _copied_state(self, sequence: HasSlot) -> RecurrentState | None:
        return sequence.state.copy() if sequence.state is not None and self._free_state() else None

    def needs(self, rows: Rows) -> int:
        """How many blocks these rows need, including the copy of a shared last block."""
        return 0 if self._blocks is None else cast(HasBlocks, rows.sequence).blocks_for(len(rows.tokens))

    def free_for(self, rows: Sequence[Rows]) -> bool:
        """Free the blocks that all of these rows need. Returns False if there are not enough.

        As a last resort a prefix is dropped from the cache, so that its one sequence can write without a copy.
        """
        if self._blocks is None:
            return True
        # Rows take a block more than they fill, and a copy of one: where that many are free, nobody need count.
        most = sum([len(each.tokens) for each in rows]) // self._blocks.size + 2 * len(rows)
        if self._blocks.free >= most or self.free_up(sum(map(self.needs, rows))):
            return True
        for each in rows:
            place, filled = divmod(each.sequence.length, self._blocks.size)
            if filled and self._prefixes is not None:
                self._prefixes.discard(cast(HasBlocks, each.sequence).blocks[place])
        return self.free_up(sum(map(self.needs, rows)))

    def holds(self, request: Request) -> bool:
        """Whether a request holds blocks."""
        sequence: object = request.sequence
        return self._blocks is not None and isinstance(sequence, HasBlocks) and bool(sequence.blocks)

    def free_up(self, blocks: int) -> bool:
        """Have `blocks` blocks free, evicting unused prefixes. Returns False if that is not enough."""
        if self._blocks is None or not blocks:
            return True
        while self._blocks.free < blocks:
            if self._prefixes is None or not self._prefixes.evict():
                return False
        return True

    def wrap_prefixes(self, wrap: Callable[[Prefixes], Prefixes]) -> None:
        """Put something around the prefix cache, if prefixes are kept at all."""
        if self._prefixes is not None:
            self._prefixes = wrap(self._prefixes)

    @property
    def prefix_blocks(self) -> int:
        """Blocks in the prefix cache."""
        return len(self._prefixes) if isinstance(self._prefixes, Sized) else 0

    def clear_prefixes(self) -> None:
        """Evict all prefixes that no request uses."""
        while self._prefixes is not None and self._prefixes.evict():
            pass
