"""Which place a request goes to: the one that has read the most of its beginning, else the least busy. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from ipex_assist.executors.blocks import BLOCK

MOST_BLOCKS = 1 << 16  # remembered of a place that does not say how many it holds


def block_keys(tokens: Sequence[int], size: int = BLOCK) -> list[int]:
    """A number for each whole block of a text, by the block and all before it.

    Two texts may share one by chance: a request then goes to a place that knows it less, and its text is the same.
    """
    keys: list[int] = []
    for start in range(0, len(tokens) - size + 1, size):
        keys.append(hash((keys[-1] if keys else 0, *tokens[start : start + size])))
    return keys


class KnownPrefixes:
    """What one place was given to read, by blocks, as its prefix cache would hold it: the oldest are forgotten."""

    def __init__(self, most: int = MOST_BLOCKS) -> None:
        self.most = most
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, keys: Sequence[int]) -> int:
        """How many of a text's first blocks are known."""
        return next((count for count, key in enumerate(keys) if key not in self._blocks), len(keys))

    def keep(self, keys: Sequence[int]) -> None:
        """Remember a text; its beginning longest, since all that follows is found by it."""
        for key in reversed(keys):
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > self.most:
            self._blocks.popitem(last=False)

    def forget(self) -> None:
        """The place has lost what it knew."""
        self._blocks.clear()


def choose(known: Mapping[int, int], load: Mapping[int, float]) -> int:
    """The place to go to, of those in `load` (which have room): that with most `known` blocks, else the least busy.

    load: how busy each is, as a part of what it takes. Of equal ones the first.
    """
    return min(load, key=lambda slot: (-known.get(slot, 0), load[slot], slot))
