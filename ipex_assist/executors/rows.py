"""RowPlan: the shapes of decode passes, chosen so that a row's arithmetic never depends on its neighbours.

Matrix libraries pick another kernel, and with it another order of sums, by the number of rows; so a token computed
alone and the same token computed among drafted ones can differ in the last bit, and sooner or later in an arg-max.
Padding every pass to one of a few row counts whose results were seen to be equal takes that freedom away. A padded
pass costs nothing that matters: up to 8 rows take the time of reading the weights.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowPlan:
    """Row counts a pass may have, ascending, and the block that the number of attended keys is rounded up to."""

    sizes: tuple[int, ...]
    key_block: int

    def split(self, count: int) -> list[tuple[int, int]]:
        """Passes for `count` rows, as (rows, rows with padding): full ones, then the smallest that fits the rest."""
        largest = self.sizes[-1]
        passes = [(largest, largest)] * (count // largest)
        rest = count % largest
        if rest:
            passes.append((rest, next(size for size in self.sizes if size >= rest)))
        return passes

    def key_length(self, length: int) -> int:
        """`length` rounded up to whole blocks."""
        return -(-length // self.key_block) * self.key_block
