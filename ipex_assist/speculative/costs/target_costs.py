"""Current seconds of the target's passes: the calibrated ones, corrected by those that were measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ipex_assist.speculative.costs.acceptance import Array
from ipex_assist.speculative.costs.expert_costs import ExpertCosts, ExpertSpread
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.costs.pass_times import PassTimes

# Variances of logarithms: 0.01 is an error of about 10 %. The machine's speed is unknown at first and drifts with every
# round. Calibration errors: common to all sizes above one row, correlated between neighbouring sizes, and independent
# for each size.
_SPEED, _DRIFT = 1.0, 0.005
_SEVERAL, _ALIKE, _ALONE = 0.03, 0.02, 0.01
_NEIGHBOURS = 4.0  # rows over which errors are correlated
NOISE = 0.02  # of one pass
# The errors by rows drift too, by this share of their variance per pass: other processes on the cores slow down passes
# of many rows, which are compute-bound, more than passes of one row, which are memory-bound; and end again.
_ERRORS_DRIFT = 0.02
MOST_SURPRISE = math.log(2)  # surprises are clipped at this logarithm

# Passes that take less than this share of the calibrated time contradict it, once this many were seen.
CONTRADICTED, TELLING_PASSES = 0.8, 8


class TargetCosts:
    """A Kalman filter: the logarithm of seconds ÷ calibrated seconds is the machine's speed plus an error of its kind.

    The speed is common to all passes; other processes and the context length change it. The errors, one for each number
    of rows, are of the calibration, which times some twenty passes in a second: a disturbance makes one size look
    expensive, and observed passes correct it. For a mixture of experts, passes are compared by the experts they read,
    and predicted by those they should read.

    verify: seconds of passes over 1, 2, … rows, non-decreasing; a new tuple after each pass that was observed. passes,
    seconds: observed, those of drafting included.
    """

    def __init__(self, calibrated: Costs) -> None:
        self._calibrated = calibrated
        self._by_rows = np.array(calibrated.verify)
        rows = np.arange(len(self._by_rows))
        self._state = np.zeros(len(rows) + 1)  # speed, errors by rows
        self._covariance = np.diag([_SPEED, *[_ALONE] * len(rows)])
        self._covariance[1:, 1:] += _ALIKE * np.exp(-np.abs(rows[:, None] - rows) / _NEIGHBOURS)
        self._covariance[2:, 2:] += _SEVERAL
        self._errors_drift = _ERRORS_DRIFT * self._covariance[1:, 1:]
        self._spread = ExpertSpread(calibrated.experts) if calibrated.experts else None
        self._requests = 1
        self.seconds, self.passes = 0.0, 0
        self.verify = self._corrected(self.speed)

    @property
    def speed(self) -> float:
        """The machine's, now: a logarithm, 0 as when calibrated."""
        return float(self._state[0])

    @property
    def found_speed(self) -> float:
        """The speed of the costs that are stored.

        Passes faster than calibrated mean that calibration was disturbed, and are stored. Slower ones, caused by other
        processes or a long context, are not: the stored plain pass stays as calibrated.
        """
        error = float(self._state[1])
        return min(self.speed + error, 0.0) - error

    @property
    def contradicted(self) -> bool:
        """Whether passes were faster than the calibrated costs allow."""
        return self.passes >= TELLING_PASSES and float(self._state[0] + self._state[1]) < math.log(CONTRADICTED)

    @property
    def found(self) -> tuple[tuple[float, ...], ExpertCosts | None]:
        """What is stored: `verify` at the found speed with as many experts as in calibration, and those of requests."""
        factors = np.exp(self.found_speed + self._state[1:])
        verify = tuple(np.maximum.accumulate(self._by_rows * factors).tolist())
        return verify, None if self._spread is None else self._spread.learnt()

    def verify_from(self, rows: int) -> tuple[float, ...]:
        """Return `verify` for passes of at least `rows` rows, independent of estimates for fewer."""
        factors = np.exp(self._state[0] + self._state[1:])
        verify = self._passes_of(rows) * factors
        first = min(rows, len(verify)) - 1
        verify[:first] = verify[first]
        return tuple(np.maximum.accumulate(verify).tolist())

    def observe_pass(self, took: PassTimes, requests: int = 1) -> None:
        """Update by a pass that `requests` shared."""
        self._drift(1, took.seconds + took.draft_s)
        expected_s = self._expected(took.rows, took.experts, requests)
        self._compare(min(took.rows, len(self._by_rows)), took.seconds, expected_s)

    def observe_plain(self, passes: Sequence[PassTimes], requests: int = 1) -> None:
        """Update by passes of a row for each of `requests`, without drafts, all at once: their median counts as one."""
        seconds = [each.seconds for each in passes]
        counted = [each.experts for each in passes if each.experts is not None]
        experts = float(np.mean(counted)) if counted else None
        self._drift(len(seconds), sum(seconds))
        median = sorted(seconds)[len(seconds) // 2]
        self._compare(min(requests, len(self._by_rows)), median, self._expected(requests, experts, requests))

    def _drift(self, passes: int, seconds: float) -> None:
        self.seconds += seconds
        self.passes += passes
        self._covariance[0, 0] += _DRIFT * passes
        self._covariance[1:, 1:] += self._errors_drift * passes

    def _expected(self, rows: int, experts: float | None, requests: int) -> float:
        """Return the calibrated seconds of a pass over `rows` rows that read `experts` experts a layer."""
        seconds = self._calibrated.verifying(rows)
        if self._spread is None or experts is None:
            return seconds
        self._requests = requests
        self._spread.observe(rows, requests, experts)
        return max(self._calibrated.verifying(1) / 2, seconds + self._spread.costs.beyond_calibration(rows, experts))

    def _compare(self, kind: int, seconds: float, expected: float) -> None:
        if seconds > 0 and expected > 0:
            shared = self._covariance[0] + self._covariance[kind]
            variance = shared[0] + shared[kind] + NOISE
            surprise = math.log(seconds / expected) - self._state[0] - self._state[kind]
            gain = shared / variance
            self._state += gain * min(max(surprise, -MOST_SURPRISE), MOST_SURPRISE)
            self._covariance -= np.outer(gain, shared)
        self.verify = self._corrected(self.speed)

    def _passes_of(self, requests: int) -> Array:
        """Return calibrated seconds of passes over 1, 2, … rows with the experts `requests` requests read; (rows,)."""
        if self._spread is None:
            return self._by_rows
        spread, rows = self._spread, range(1, len(self._by_rows) + 1)
        more = [spread.costs.beyond_calibration(count, spread.distinct(count, requests)) for count in rows]
        return np.maximum(self._by_rows[0], self._by_rows + more)

    def _corrected(self, speed: float) -> tuple[float, ...]:
        """Return `verify`. A pass of more rows is never cheaper, even if a disturbed measurement says so."""
        verify = self._passes_of(self._requests) * np.exp(speed + self._state[1:])
        return tuple(np.maximum.accumulate(verify).tolist())
