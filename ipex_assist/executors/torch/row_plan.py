"""RowPlan: the row counts of decode passes, chosen so that a row's bits never depend on its neighbours.

Matrix libraries choose a kernel, and with it an order of summation, by the number of rows. So a token computed alone
and the same token computed among drafted ones can differ in the last bit, and sooner or later in an arg-max. Therefore
every pass is padded to one of a few row counts that were seen to give equal bits (exactness.py). Padding costs next to
nothing: up to 8 rows take as long as reading the weights.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowPlan:
    """The row counts that a pass may have, ascending, and the block size to which the number of keys is rounded up."""

    sizes: tuple[int, ...]
    key_block: int

    def split(self, count: int) -> list[tuple[int, int]]:
        """Passes for `count` rows as (rows, padded rows): full passes, then the smallest that holds the rest."""
        largest = self.sizes[-1]
        passes = [(largest, largest)] * (count // largest)
        rest = count % largest
        if rest:
            passes.append((rest, next(size for size in self.sizes if size >= rest)))
        return passes

    def key_length(self, length: int) -> int:
        """`length` rounded up to whole blocks."""
        return -(-length // self.key_block) * self.key_block
