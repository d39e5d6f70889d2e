"""Prefix-aware routing: the slot with the longest cached prefix of a request, else the least loaded. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from ipex_assist.native.rows import BLOCK

MOST_BLOCKS = 1 << 16  # of a slot that does not report how many it holds


def block_keys(tokens: Sequence[int], size: int = BLOCK) -> list[int]:
    """A hash for each full block of tokens, of the block and all before it.

    A collision only routes a request to a slot with a shorter cached prefix; its output is the same.
    """
    keys: list[int] = []
    for start in range(0, len(tokens) - size + 1, size):
        keys.append(hash((keys[-1] if keys else 0, *tokens[start : start + size])))
    return keys


class KnownPrefixes:
    """The blocks that a slot's prefix cache presumably holds, in least recently used order."""

    def __init__(self, most: int = MOST_BLOCKS) -> None:
        self.most = most
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, keys: Sequence[int]) -> int:
        """How many of the first blocks are known."""
        return next((count for count, key in enumerate(keys) if key not in self._blocks), len(keys))

    def keep(self, keys: Sequence[int]) -> None:
        """Add a request's blocks; the first ones are evicted last, since later ones are useless without them."""
        for key in reversed(keys):
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > self.most:
            self._blocks.popitem(last=False)

    def forget(self) -> None:
        """The slot's process has lost its cache."""
        self._blocks.clear()


def choose(known: Mapping[int, int], load: Mapping[int, float]) -> int:
    """Choose among the slots in `load` (which have room): the most `known` blocks, then the least load, then the first.

    load: running requests ÷ concurrency.
    """
    return min(load, key=lambda slot: (-known.get(slot, 0), load[slot], slot))
