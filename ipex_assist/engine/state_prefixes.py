"""Prefix caching for models whose layers keep states: those of earlier requests, with the KV blocks before them.

A state cannot be cut at any token, as KV blocks can. So it is kept at the end of prompts, at the end of texts, and
where a prompt parted from an earlier one, since what comes there a second time will come again. A kept state serves
the last PENDING_ROWS lengths as well, whose rows can still be forgotten. No torch here.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ipex_assist.engine.prefix_cache import CachedPrefix, common_tokens
from ipex_assist.executors.blocks import BlockPool
from ipex_assist.executors.recurrent_states import RecurrentState
from ipex_assist.native.rows import PENDING_ROWS

LEAST_TOKENS = 64  # of a prefix whose state is worth keeping: reading fewer takes little longer than copying


@dataclass(eq=False)
class _Kept:
    """The state after `tokens`, and the blocks with their keys and values, each with a reference of its own."""

    tokens: tuple[int, ...]
    blocks: list[int]
    state: RecurrentState
    used: int
    adapter: Hashable = None

    def serves(self, length: int) -> bool:
        """Whether a sequence can begin with its first `length` tokens."""
        return length >= max(1, self.state.settled)


class StatePrefixes:
    """Prefixes (see prefix_cache.py) with states. Those that were not used for longest go first, by `evict`."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._kept: list[_Kept] = []
        self._clock = 0

    def __len__(self) -> int:
        return len({block for each in self._kept for block in each.blocks})

    def __del__(self) -> None:
        for each in getattr(self, "_kept", ()):
            self._pool.release_soon(each.blocks)

    def find(self, tokens: Sequence[int], adapter: Hashable = None) -> CachedPrefix:
        """The longest prefix of `tokens` with a state, and where they part from those of earlier requests."""
        length, found, branch = self._longest(tuple(tokens), adapter)
        # What the prompt's own end will serve needs no state of its own.
        if branch <= length or not LEAST_TOKENS <= branch < len(tokens) - PENDING_ROWS:
            branch = 0
        if found is None:
            return CachedPrefix([], 0, None, branch)
        self._use(found)
        return CachedPrefix(found.blocks[: -(-length // self._pool.size)], length, found.state, branch)

    def wants(self, tokens: Sequence[int], adapter: Hashable = None) -> bool:
        """Whether the state after these tokens would serve a request that no kept one does."""
        return len(tokens) >= LEAST_TOKENS and self._longest(tuple(tokens), adapter)[0] < len(tokens)

    def _longest(self, key: tuple[int, ...], adapter: Hashable) -> tuple[int, _Kept | None, int]:
        """How many tokens of `key` a kept state serves, that state, and how many tokens any kept prefix shares."""
        known = [(common_tokens(each.tokens, key), each) for each in self._kept if each.adapter == adapter]
        served = [(length, each.used, each) for length, each in known if each.serves(length)]
        length, _, found = max(served, key=lambda each: each[:2], default=(0, 0, None))
        return length, found, max((length for length, _ in known), default=0)

    def keep(
        self,
        tokens: Sequence[int],
        blocks: Sequence[int],
        state: RecurrentState | None = None,
        adapter: Hashable = None,
    ) -> None:
        """Insert the state after `tokens`, which is nobody else's from now on, and the blocks of those tokens."""
        if state is None or not self.wants(tokens, adapter):
            return
        for block in blocks:
            self._pool.share(block)
        self._kept.append(_Kept(tuple(tokens), list(blocks), state, self._clock, adapter))

    def evict(self) -> bool:
        """Forget the prefix that was not used for longest. Returns False if there is none."""
        oldest = min(self._kept, key=lambda each: each.used, default=None)
        if oldest is not None:
            self._forget(oldest)
        return oldest is not None

    def discard(self, block: int) -> None:
        """Forget the prefixes that end in a block, so that its one sequence can write to it without a copy."""
        for each in [each for each in self._kept if each.blocks[-1] == block]:
            self._forget(each)

    def _use(self, kept: _Kept) -> None:
        self._clock += 1
        kept.used = self._clock

    def _forget(self, kept: _Kept) -> None:
        self._kept.remove(kept)
        self._pool.release_many(kept.blocks)
