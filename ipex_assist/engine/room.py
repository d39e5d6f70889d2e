"""The memory of running requests: blocks for what they read, prefixes that are there already. No torch here."""

from __future__ import annotations

from ipex_assist.engine.prefix_cache import Prefixes
from ipex_assist.engine.request import Request
from ipex_assist.executors.interface import ANY_ROWS, HasBlocks, Model, Rows


class Room:
    """Gives requests their sequences. Where sequences own their memory there is nothing to count."""

    def __init__(self, target: Model, prefixes: Prefixes | None) -> None:
        self._target, self._blocks = target, target.blocks
        if target.exact_rows < ANY_ROWS:  # what a chunk of a prompt leaves is not what the prompt as a whole would
            prefixes = None
        rope = target.spec.rope
        # Under this rule what is computed for a token depends on how long its prompt is.
        by_length = rope is not None and rope.kind == "dynamic"
        self._prefixes = None if by_length else prefixes

    def admits(self, request: Request) -> bool:
        """Whether there are blocks for all that a request has to read, and one more."""
        if self._blocks is None:
            return True
        return self.make(len(request.tokens) // self._blocks.size + 1 - len(self._known(request)))

    def begin(self, request: Request) -> int:
        """Make the sequence of a request; returns how many tokens it holds already.

        Raises IpexAssistError where there is no memory.
        """
        if self._blocks is None:
            request.sequence = self._target.new_sequence(request.end)
        else:
            request.sequence = self._target.new_sequence(request.end, request.prompt_length, self._known(request))
        return request.sequence.length

    def _known(self, request: Request) -> list[int]:
        return [] if self._prefixes is None or request.lists_prompt else self._prefixes.find(request.tokens[:-1])

    def keep(self, request: Request) -> None:
        """Remember the whole blocks of what a request has read."""
        if self._prefixes is None or self._blocks is None or request.sequence is None:
            return
        assert isinstance(request.sequence, HasBlocks)
        whole = request.sequence.length // self._blocks.size
        if whole:
            self._prefixes.keep(request.tokens, request.sequence.blocks[:whole])

    def needs(self, rows: Rows) -> int:
        """How many blocks a sequence takes for these rows, the copy of a block that it shares included."""
        blocks = self._blocks
        if blocks is None:
            return 0
        sequence, size = rows.sequence, blocks.size
        assert isinstance(sequence, HasBlocks)
        held = sequence.blocks
        more = -(-(sequence.length + len(rows.tokens)) // size) - len(held)
        part = sequence.length % size and blocks.references(held[sequence.length // size]) > 1
        return max(0, more) + bool(part)

    def holds(self, request: Request) -> bool:
        """Whether a request has blocks."""
        return self._blocks is not None and isinstance(request.sequence, HasBlocks) and bool(request.sequence.blocks)

    def make(self, blocks: int) -> bool:
        """Have so many blocks free, giving up prefixes that nobody uses. False where that is not enough."""
        if self._blocks is None:
            return True
        while self._blocks.free < blocks:
            if self._prefixes is None or not self._prefixes.give_up():
                return False
        return True

    def forget(self) -> None:
        """Give up all prefixes that no request uses."""
        while self._prefixes is not None and self._prefixes.give_up():
            pass
