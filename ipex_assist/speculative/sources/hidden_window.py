"""Hidden states of a target that its draft head has not read, by position."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

HiddenStates: TypeAlias = "NDArray[np.float32]"


class HiddenWindow:
    """Rows of consecutive positions, the latest of those that were added."""

    def __init__(self) -> None:
        self.end = 0  # the position after the last row
        self._parts: deque[HiddenStates] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def first(self) -> int:
        """The position of the first row."""
        return self.end - self._count

    def add(self, first: int, rows: HiddenStates) -> None:
        """Append the rows of positions from `first` on, in place of any that are here already.

        After a gap only the new ones are kept: a head reads positions in order, and there is nothing to fill it with.
        """
        if first > self.end or first < self.first:
            self._parts.clear()
            self._count, self.end = 0, first
        while self.end > first:
            self._cut_last(first)
        self._parts.append(rows)
        self._count, self.end = self._count + len(rows), first + len(rows)

    def _cut_last(self, end: int) -> None:
        last = self._parts.pop()
        kept = last[: max(0, len(last) - (self.end - end))]
        self.end -= len(last) - len(kept)
        self._count -= len(last) - len(kept)
        if len(kept):
            self._parts.append(kept)

    def rows(self, first: int, end: int) -> HiddenStates:
        """The rows of positions `first` to `end` - 1, (end - first, width); all of them are here."""
        assert self.first <= first < end <= self.end, (self.first, first, end, self.end)
        if len(self._parts) > 1:
            self._parts = deque([np.concatenate(self._parts)])
        return self._parts[0][first - self.first : end - self.first]

    def keep_last(self, count: int) -> None:
        """Drop all but the last `count` rows, which from now on have memory of their own: a pass gives views of its."""
        kept = self.rows(max(self.first, self.end - count), self.end).copy() if self._count and count else None
        self._parts = deque() if kept is None else deque([kept])
        self._count = 0 if kept is None else len(kept)
