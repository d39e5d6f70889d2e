"""Errors of the calibrated costs of drafting, estimated from measured drafts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ipex_assist.speculative.costs.acceptance import Array
from ipex_assist.speculative.costs.pair_costs import Costs

# Prior variances of the logarithms of two errors: of all drafting, and of reading beyond that. Reading is timed in few
# passes: a disturbance may make it look ten times too expensive, but little makes it look too cheap.
_DRAFT, _TOO_EXPENSIVE, _TOO_CHEAP = 0.1, 4.0, 0.03
_DRIFT = 0.002  # of both variances with each draft
_ITERATIONS = 5  # by which one time is divided between steps and reading


class DraftErrors:
    """An iterated extended Kalman filter of two logarithms: drafting takes e^a (steps + e^b reading)."""

    def __init__(self) -> None:
        self._state, self._covariance = np.zeros(2), np.diag([_DRAFT, _TOO_EXPENSIVE])

    def corrected(self, costs: Costs, speed: float) -> Costs:
        """Return the costs with those of the draft corrected, at this speed of the machine (a logarithm)."""
        draft = math.exp(speed + self._state[0])
        read = draft * math.exp(self._state[1])
        rows = tuple(costs.rows[0] * draft + (row - costs.rows[0]) * read for row in costs.rows)
        block = tuple(seconds * draft for seconds in costs.block)
        return replace(costs, draft=costs.draft * draft, rows=rows, read=costs.read * read, block=block)

    def observe(self, seconds: float, steps: float, reading: float, noise: float, clip: float) -> None:
        """Update by a measured time.

        steps, reading: seconds by the calibrated costs, at the machine's speed. noise: variance of the logarithm of
        `seconds`. clip: of surprises. Other processes make passes slower, never faster, so reading that took a tenth of
        its expected time is believed at once.
        """
        self._covariance = self._covariance + np.diag([_DRIFT, _DRIFT])
        before = self._state
        expected, _ = self._log_seconds(before, steps, reading)
        cheapest = math.log(steps) + float(before[0]) - clip
        measured = min(max(math.log(seconds), cheapest), expected + clip)
        # Where reading turns out to be too cheap, its variance is another.
        too_cheap = measured > expected and before[1] >= 0
        scale = np.array([1.0, min(1.0, math.sqrt(_TOO_CHEAP / self._covariance[1, 1])) if too_cheap else 1.0])
        covariance, at = self._covariance * np.outer(scale, scale), before
        for _ in range(_ITERATIONS):
            predicted, place = self._log_seconds(at, steps, reading)
            shared = covariance @ place
            gain = shared / (place @ shared + noise)
            at = before + gain * (measured - predicted - float(place @ (before - at)))
        self._state = at
        self._covariance = (covariance - np.outer(gain, shared)) / np.outer(scale, scale)

    @staticmethod
    def _log_seconds(state: Array, steps: float, reading: float) -> tuple[float, Array]:
        """Return the logarithm of the predicted seconds, and its derivative by the state."""
        read = reading * math.exp(state[1])
        return math.log(steps + read) + float(state[0]), np.array([1.0, read / (steps + read)])
