"""The cost of a mixture-of-experts pass by the distinct experts it reads, and a model of how many. No torch here.

A row reads `per_token` of a layer's `count` experts. Rows that choose independently read count · (1 - (1 - per_token /
count)^rows) distinct ones. Neighbouring tokens choose similar experts, and some experts are chosen by most rows: n
drafted rows that follow a row count as spread · n^growth independent rows. Both numbers are estimated from the passes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

_FULL = 0.98  # share of all experts from which on their number no longer depends on the rows
# Variances of the logarithm of independent rows: of one pass, and the drift between passes.
_NOISE, _DRIFT = 0.25, 0.0005
_UNKNOWN_SPREAD, _UNKNOWN_GROWTH = 0.1, 0.02  # prior variances
_LEAST = 0.1  # lower bound of what a drafted row counts as
_SPREADS, _GROWTHS = (0.02, 1.5), (0.3, 1.1)


@dataclass(frozen=True)
class ExpertCosts:
    """Of a mixture with `count` experts a layer, of which a row reads `per_token`.

    read: distinct experts a layer, mean over the layers, in calibration's passes over 1, 2, … rows. seconds: of reading
    one more expert in every layer. spread, growth: of the last request (see ExpertSpread); initially those of typical
    trained routers.
    """

    count: int
    per_token: int
    read: tuple[float, ...]
    seconds: float
    spread: float = 0.8
    growth: float = 0.85

    def distinct(self, rows: float) -> float:
        """Return the expected distinct experts a layer of `rows` rows that choose independently."""
        return self.count * (1 - (1 - self.per_token / self.count) ** rows)

    def independent(self, distinct: float) -> float:
        """Return the number of independent rows that read `distinct` experts: the inverse of `distinct`."""
        if self.per_token >= self.count:
            return 1.0
        share = min(distinct / self.count, _FULL)
        return math.log1p(-share) / math.log1p(-self.per_token / self.count)

    def beyond_calibration(self, rows: int, distinct: float) -> float:
        """Return the extra seconds of a pass that reads `distinct` experts, over calibration's pass of `rows`."""
        return self.seconds * (distinct - self.read[min(rows, len(self.read)) - 1])


class ExpertSpread:
    """How many experts of their own drafted rows choose: a Kalman filter of log(spread) and growth."""

    def __init__(self, costs: ExpertCosts) -> None:
        self.costs = costs
        self._state = np.array([math.log(costs.spread), costs.growth])
        self._covariance = np.diag([_UNKNOWN_SPREAD, _UNKNOWN_GROWTH])

    @property
    def spread(self) -> float:
        """Independent rows that one drafted row counts as."""
        return min(max(math.exp(self._state[0]), _SPREADS[0]), _SPREADS[1])

    @property
    def growth(self) -> float:
        """The exponent for several drafted rows."""
        return min(max(float(self._state[1]), _GROWTHS[0]), _GROWTHS[1])

    def learnt(self) -> ExpertCosts:
        """Return the costs that the next request starts with."""
        return replace(self.costs, spread=self.spread, growth=self.growth)

    def observe(self, rows: int, requests: int, distinct: float) -> None:
        """Learn from a pass of `requests` requests over `rows` rows that read `distinct` experts a layer."""
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
        """Return the expected distinct experts a layer of a pass of `requests` requests over `rows` rows."""
        own = min(rows, requests)
        drafted = (rows - own) / own
        return self.costs.distinct(own * (1 + self.spread * drafted**self.growth))
