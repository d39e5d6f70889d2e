"""The memory of running requests: blocks for what they read, prefixes that are there already. No torch here."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import cast

from ipex_assist.engine.prefix_cache import CachedPrefix, Prefixes
from ipex_assist.engine.request import Request
from ipex_assist.executors.interface import ANY_ROWS, HasBlocks, Model, Rows


class BlockBudget:
    """Gives requests their sequences. Where sequences own their memory there is nothing to count."""

    def __init__(self, target: Model, prefixes: Prefixes | None) -> None:
        self._target, self._blocks = target, target.blocks
        if target.exact_rows < ANY_ROWS:  # what a chunk of a prompt leaves is not what the prompt as a whole would
            prefixes = None
        # Under such a rule what is computed for a token depends on how long its prompt is.
        by_length = any(rope.by_length for rope in target.spec.ropes)
        self._prefixes = None if by_length else prefixes

    def admits(self, request: Request) -> bool:
        """Whether there are blocks for all that a request has to read, and one more."""
        if self._blocks is None:
            return True
        size = self._blocks.size
        return self.free_up(len(request.tokens) // size + 1 - self._cached_prefix(request).length // size)

    def begin(self, request: Request) -> int:
        """Make the sequence of a request; returns how many tokens it holds already.

        Raises IpexAssistError where there is no memory.
        """
        if self._blocks is None:
            request.sequence = self._target.new_sequence(request.end)
        else:
            blocks, length = self._cached_prefix(request)
            request.sequence = self._target.new_sequence(request.end, request.prompt_length, blocks)
            request.sequence.truncate(length)
        return request.sequence.length

    def _cached_prefix(self, request: Request) -> CachedPrefix:
        if self._prefixes is None or request.needs_prompt_logits:
            return CachedPrefix([], 0)
        return self._prefixes.find(request.tokens[:-1])

    def keep(self, request: Request, *, full_blocks_only: bool = False) -> None:
        """Remember what a request has read. whole: the full blocks of it, as it will write to the last one."""
        if self._prefixes is None or self._blocks is None or request.sequence is None:
            return
        size, length = self._blocks.size, request.sequence.length
        length -= length % size if full_blocks_only else 0
        held = cast(HasBlocks, request.sequence).blocks
        self._prefixes.keep(request.tokens[:length], held[: -(-length // size)])

    def needs(self, rows: Rows) -> int:
        """How many blocks a sequence takes for these rows, the copy of a block that it shares included."""
        blocks = self._blocks
        if blocks is None:
            return 0
        sequence, size = rows.sequence, blocks.size
        held = cast(HasBlocks, sequence).blocks
        place, filled = divmod(sequence.length, size)
        more = -(-(sequence.length + len(rows.tokens)) // size) - len(held)
        return max(0, more) + bool(filled and blocks.references(held[place]) > 1)

    def free_for(self, rows: Sequence[Rows]) -> bool:
        """Have the blocks free that all of these need. False where there are not enough.

        Rather than that, a text goes on in the block that it shares with a prefix alone, which is forgotten.
        """
        if self._blocks is None or self.free_up(sum(map(self.needs, rows))):
            return True
        for each in rows:
            place, filled = divmod(each.sequence.length, self._blocks.size)
            if filled and self._prefixes is not None:
                self._prefixes.discard(cast(HasBlocks, each.sequence).blocks[place])
        return self.free_up(sum(map(self.needs, rows)))

    def holds(self, request: Request) -> bool:
        """Whether a request has blocks."""
        return self._blocks is not None and isinstance(request.sequence, HasBlocks) and bool(request.sequence.blocks)

    def free_up(self, blocks: int) -> bool:
        """Have so many blocks free, giving up prefixes that nobody uses. False where that is not enough."""
        if self._blocks is None:
            return True
        while self._blocks.free < blocks:
            if self._prefixes is None or not self._prefixes.evict():
                return False
        return True

    @property
    def prefix_blocks(self) -> int:
        """Blocks that are remembered."""
        return len(self._prefixes) if isinstance(self._prefixes, Sized) else 0

    def clear_prefixes(self) -> None:
        """Give up all prefixes that no request uses."""
        while self._prefixes is not None and self._prefixes.evict():
            pass
