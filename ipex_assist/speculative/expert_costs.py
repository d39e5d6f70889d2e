"""What passes of a mixture of experts cost by the experts they read, and how many those of a text do. No torch here.

A row reads `per_token` of a layer's `count` experts. Rows that choose independently read count · (1 - (1 - per_token /
count)^rows) distinct ones. Neighbours in a text choose alike, and some experts are chosen by most rows: n rows drafted
behind another count as spread · n^growth rows that choose independently. The passes of a text tell both numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

_FULL = 0.98  # of all experts: from there on their number tells nothing of how many rows chose by themselves
# Logarithms of what rows count as: a pass's is off by about a half, and texts drift.
_NOISE, _DRIFT = 0.25, 0.0005
_UNKNOWN_SPREAD, _UNKNOWN_GROWTH = 0.1, 0.02  # variances before anything is seen
_LEAST = 0.1  # of what a drafted row counts as
_SPREADS, _GROWTHS = (0.02, 1.5), (0.3, 1.1)


@dataclass(frozen=True)
class ExpertCosts:
    """Of a mixture with `count` experts a layer, of which a row reads `per_token`.

    read: distinct experts a layer, the mean of all layers, in calibration's passes over 1, 2, … rows. seconds: what one
    expert more costs in every layer. spread, growth: of the last text (see Spread); those of trained routers at first.
    """

    count: int
    per_token: int
    read: tuple[float, ...]
    seconds: float
    spread: float = 0.8
    growth: float = 0.85

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


class ExpertSpread:
    """How far the rows drafted behind a row choose experts of their own: a Kalman filter of two logarithms' line."""

    def __init__(self, costs: ExpertCosts) -> None:
        self.costs = costs
        self._state = np.array([math.log(costs.spread), costs.growth])
        self._covariance = np.diag([_UNKNOWN_SPREAD, _UNKNOWN_GROWTH])

    @property
    def spread(self) -> float:
        """What one drafted row counts as."""
        return min(max(math.exp(self._state[0]), _SPREADS[0]), _SPREADS[1])

    @property
    def growth(self) -> float:
        """The exponent by which more of them count."""
        return min(max(float(self._state[1]), _GROWTHS[0]), _GROWTHS[1])

    def learnt(self) -> ExpertCosts:
        """Return the costs that a next text begins with."""
        return replace(self.costs, spread=self.spread, growth=self.growth)

    def observe(self, rows: int, requests: int, distinct: float) -> None:
        """Learn from a pass of `texts` texts over `rows` rows that read so many experts a layer."""
        if rows <= requests or distinct >= _FULL * self.costs.count or self.costs.per_token >= self.costs.count:
            return
        drafted = (rows - requests) / requests
        seen = max((self.costs.independent(distinct) - requests) / requests, _LEAST * drafted)
        place = np.array([1.0, math.log(drafted)])
        self._covariance += np.diag([_DRIFT, _DRIFT / 10])
        shared = self._covariance @ place
        gain = shared / (place @ shared + _NOISE)
        self._state = self._state + gain * (math.log(seen) - place @ self._state)
        self._covariance -= np.outer(gain, shared)

    def distinct(self, rows: int, requests: int) -> float:
        """Return the experts a layer that a pass of `texts` texts over `rows` rows should read."""
        own = min(rows, requests)
        drafted = (rows - own) / own
        return self.costs.distinct(own * (1 + self.spread * drafted**self.growth))
