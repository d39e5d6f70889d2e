"""What passes of a mixture of experts cost by the experts they read, and how many those of a text do. No torch here.

A row reads `per_token` of a layer's `count` experts. Rows that choose independently read count · (1 - (1 - per_token /
count)^rows) distinct ones; neighbours in a text choose alike, so that rows drafted behind another count as less than a
row of their own. How much less is one number a text, its `Spread`, which its passes tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_MEMORY = 0.95  # of a text's spread, a drafted row: some 20 of them are remembered
_FULL = 0.98  # of all experts: from there on their number tells nothing of how many rows chose by themselves
_MOST = 1.5  # rows that avoid each other's experts: seldom, and by chance


@dataclass(frozen=True)
class ExpertCosts:
    """Of a mixture with `count` experts a layer, of which a row reads `per_token`.

    read: distinct experts a layer, the mean of all layers, in calibration's passes over 1, 2, … rows. seconds: what one
    expert more costs in every layer. spread: of the last text (see Spread).
    """

    count: int
    per_token: int
    read: tuple[float, ...]
    seconds: float
    spread: float = 1.0

    def distinct(self, rows: float) -> float:
        """Return the experts a layer that so many rows read which choose independently."""
        return self.count * (1 - (1 - self.per_token / self.count) ** rows)

    def independent(self, distinct: float) -> float:
        """Return the rows which choose independently that read so many: the inverse of `distinct`."""
        if self.per_token >= self.count:
            return 1.0
        share = min(distinct / self.count, _FULL)
        return math.log1p(-share) / math.log1p(-self.per_token / self.count)

    def beyond_calibration(self, rows: int, distinct: float) -> float:
        """Return the seconds by which a pass over `rows` rows takes longer than calibration's, which read others."""
        return self.seconds * (distinct - self.read[min(rows, len(self.read)) - 1])


class Spread:
    """How far the rows drafted behind a row choose experts of their own: 1 as if independent, 0 always the same."""

    def __init__(self, costs: ExpertCosts) -> None:
        self._costs = costs
        self.value = costs.spread

    def observe(self, rows: int, texts: int, distinct: float) -> None:
        """Learn from a pass of `texts` texts over `rows` rows that read so many experts a layer."""
        drafted = rows - texts
        if drafted <= 0 or distinct >= _FULL * self._costs.count:
            return
        seen = (self._costs.independent(distinct) - texts) / drafted
        kept = _MEMORY**drafted
        self.value = kept * self.value + (1 - kept) * min(max(seen, 0.0), _MOST)

    def distinct(self, rows: int, texts: int) -> float:
        """Return the experts a layer that a pass of `texts` texts over `rows` rows should read."""
        own = min(rows, texts)
        return self._costs.distinct(own + self.value * (rows - own))
