"""Current costs of passes: the calibrated costs, corrected by measured rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ipex_assist.speculative.costs.acceptance import Array
from ipex_assist.speculative.costs.draft_errors import DraftErrors
from ipex_assist.speculative.costs.expert_costs import ExpertSpread
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.costs.pass_times import PassTimes

# Variances of logarithms: 0.01 is an error of about 10 %. The machine's speed is unknown at first and drifts with every
# round. Calibration errors: common to all sizes above one row, correlated between neighbouring sizes, and independent
# for each size.
_SPEED, _DRIFT = 1.0, 0.005
_SEVERAL, _ALIKE, _ALONE = 0.03, 0.02, 0.01
_NEIGHBOURS = 4.0  # rows over which errors are correlated
_NOISE = 0.02  # of one pass
# The errors by rows drift too, by this share of their variance per pass: other processes on the cores slow down passes
# of many rows, which are compute-bound, more than passes of one row, which are memory-bound; and end again.
_ERRORS_DRIFT = 0.02
_PAUSE = math.log(2)  # surprises are clipped at this logarithm

# Passes that take less than this share of the calibrated time contradict it, once this many were seen.
CONTRADICTED, TELLING_PASSES = 0.8, 8


@dataclass(frozen=True)
class CostFindings:
    """What a request's rounds say about the costs it started with.

    before, costs: the costs at its start, and as corrected by its passes. seconds: of all its rounds. untried: the
    costs prevented every draft, so the draft's costs were not observed. contradicted: passes were faster than the costs
    allow.
    """

    before: Costs
    costs: Costs
    seconds: float
    untried: bool
    contradicted: bool


class LiveCosts:
    """A Kalman filter: the logarithm of seconds ÷ calibrated seconds is the machine's speed plus an error of its kind.

    The speed is common to all passes; other processes and the context length change it. The errors, one for each number
    of rows, are of the calibration, which times some twenty passes in a second: a disturbance makes one size look
    expensive, and observed passes correct it. Those of the draft have a filter of their own: see DraftErrors.

    For a mixture of experts, passes are compared by the experts they read, and predicted by those they should read.
    """

    def __init__(self, calibrated: Costs) -> None:
        self.calibrated = calibrated
        self._verify = np.array(calibrated.verify)
        rows = np.arange(len(self._verify))
        self._state = np.zeros(len(rows) + 1)  # speed, errors by rows
        self._covariance = np.diag([_SPEED, *[_ALONE] * len(rows)])
        self._covariance[1:, 1:] += _ALIKE * np.exp(-np.abs(rows[:, None] - rows) / _NEIGHBOURS)
        self._covariance[2:, 2:] += _SEVERAL
        self._errors_drift = _ERRORS_DRIFT * self._covariance[1:, 1:]
        self._plausible, self._draft_errors = calibrated.plausible(), DraftErrors()
        self._seconds, self._passes = 0.0, 0
        self._spread = ExpertSpread(calibrated.experts) if calibrated.experts else None
        self._requests = 1
        self._beside: LiveCosts | None = None
        self._costs = self._plausible
        self._lookup_costs = Costs(calibrated.verify)
        if self._spread is not None:
            self._update_costs()

    @property
    def costs(self) -> Costs:
        """The current costs."""
        return self._costs

    @property
    def lookup_costs(self) -> Costs:
        """For prompt lookup, which costs nothing."""
        return self._lookup_costs

    @property
    def first(self) -> LiveCosts:
        """The costs that learn of the target's passes: these, or those that these were made beside."""
        return self

    def beside(self, calibrated: Costs) -> LiveCosts:
        """Return the costs of another assistant of the same target, always the same object for the same costs."""
        if self._beside is None or self._beside.calibrated != calibrated:
            self._beside = _CostsBeside(self, calibrated)
        return self._beside

    @property
    def reading_known(self) -> bool:
        """Whether the calibrated costs of reading were compared with a measured time."""
        return self._draft_errors.reading_known

    def reading(self, unread: int) -> float:
        """Return the calibrated seconds to read `unread` tokens."""
        return self._plausible.reading(unread)

    def observe_pass(
        self, took: PassTimes, expected_draft_s: tuple[float, float] = (0.0, 0.0), requests: int = 1
    ) -> None:
        """Update by a pass, and the drafting before it.

        expected_draft_s: of the draft's steps and of its reading, by the calibrated costs; 0 if no model drafted.
        requests: how many shared the pass.
        """
        self._seconds += took.draft_s + took.seconds
        self._passes += 1
        self._covariance[0, 0] += _DRIFT
        self._covariance[1:, 1:] += self._errors_drift
        expected_s = self._expected(took.rows, took.experts, requests)
        self._compare(min(took.rows, len(self._verify)), took.seconds, expected_s)
        self.observe_draft(took.draft_s, expected_draft_s)

    def observe_draft(self, draft_s: float, expected_s: tuple[float, float]) -> None:
        """Update by the drafting before a pass; expected_s: as of `observe_pass`."""
        self._compare_draft(draft_s, expected_s, self._state[0])
        self._update_costs()

    def _compare_draft(self, draft_s: float, expected_s: tuple[float, float], speed: float) -> None:
        steps, reading = (seconds * math.exp(speed) for seconds in expected_s)
        if draft_s > 0 and steps > 0:
            self._draft_errors.observe(draft_s, steps, reading, _NOISE, _PAUSE)

    def observe_plain(self, passes: Sequence[PassTimes], requests: int = 1) -> None:
        """Update by passes of a row for each of `requests`, without drafts, all at once: their median counts as one."""
        seconds = [each.seconds for each in passes]
        counted = [each.experts for each in passes if each.experts is not None]
        experts = float(np.mean(counted)) if counted else None
        self._seconds += sum(seconds)
        self._passes += len(seconds)
        self._covariance[0, 0] += _DRIFT * len(seconds)
        self._covariance[1:, 1:] += self._errors_drift * len(seconds)
        median = sorted(seconds)[len(seconds) // 2]
        self._compare(min(requests, len(self._verify)), median, self._expected(requests, experts, requests))
        self._update_costs()

    def _expected(self, rows: int, experts: float | None, requests: int) -> float:
        """Return the calibrated seconds of a pass over `rows` rows that read `experts` experts a layer."""
        seconds = self.calibrated.verifying(rows)
        if self._spread is None or experts is None:
            return seconds
        self._requests = requests
        self._spread.observe(rows, requests, experts)
        return max(self.calibrated.verifying(1) / 2, seconds + self._spread.costs.beyond_calibration(rows, experts))

    def _compare(self, kind: int, seconds: float, expected: float) -> None:
        if seconds <= 0 or expected <= 0:
            return
        shared = self._covariance[0] + self._covariance[kind]
        variance = shared[0] + shared[kind] + _NOISE
        surprise = math.log(seconds / expected) - self._state[0] - self._state[kind]
        gain = shared / variance
        self._state += gain * min(max(surprise, -_PAUSE), _PAUSE)
        self._covariance -= np.outer(gain, shared)

    def findings(self, untried: bool) -> CostFindings:
        """Return what the rounds so far say. untried: see CostFindings."""
        plain = float(self._state[0] + self._state[1])
        contradicted = self._passes >= TELLING_PASSES and plain < math.log(CONTRADICTED)
        corrected = self._corrected(self._verify, self._found_speed)
        if self._spread is not None:
            corrected = replace(corrected, experts=self._spread.learnt())
        return CostFindings(self.calibrated, corrected, self._seconds, untried, contradicted)

    @property
    def _found_speed(self) -> float:
        """The speed of the costs that are stored.

        Passes faster than calibrated mean that calibration was disturbed, and are stored. Slower ones, caused by other
        processes or a long context, are not: the stored plain pass stays as calibrated.
        """
        error = float(self._state[1])
        return min(float(self._state[0]) + error, 0.0) - error

    def _update_costs(self) -> None:
        self._costs = self._corrected(self._passes_of(self._requests), float(self._state[0]))
        self._lookup_costs = Costs(self._costs.verify)

    def costs_from(self, rows: int) -> Costs:
        """Return the costs for passes of at least `rows` rows, independent of estimates for fewer."""
        factors = np.exp(self._state[0] + self._state[1:])
        verify = self._passes_of(rows) * factors
        first = min(rows, len(verify)) - 1
        verify[:first] = verify[first]
        return replace(self._costs, verify=tuple(np.maximum.accumulate(verify).tolist()))

    def _passes_of(self, requests: int) -> Array:
        """Return calibrated seconds of passes over 1, 2, … rows with the experts `requests` requests read; (rows,)."""
        if self._spread is None:
            return self._verify
        spread, rows = self._spread, range(1, len(self._verify) + 1)
        more = [spread.costs.beyond_calibration(count, spread.distinct(count, requests)) for count in rows]
        return np.maximum(self._verify[0], self._verify + more)

    def _corrected(self, calibrated: Array, speed: float) -> Costs:
        """Return the costs without calibration errors at this speed (a logarithm; 0: as when calibrated)."""
        # A pass of more rows is never cheaper, even if a disturbed measurement says so.
        verify = tuple(np.maximum.accumulate(calibrated * np.exp(speed + self._state[1:])).tolist())
        return replace(self._draft_errors.corrected(self._plausible, speed), verify=verify)


class _CostsBeside(LiveCosts):
    """Live costs of an assistant that drafts in turn with another: both learn of the target's passes in one filter."""

    def __init__(self, first: LiveCosts, calibrated: Costs) -> None:
        self._first, self.calibrated, self._draft_errors = first, calibrated, DraftErrors()
        target = first.calibrated  # the assistants were calibrated at different times, perhaps
        self._plausible = replace(calibrated, verify=target.verify, experts=target.experts).plausible()
        self._of: Costs | None = None  # the first's costs for which `_costs` was computed

    @property
    def costs(self) -> Costs:
        if self._of is not self._first.costs:
            self._of = self._first.costs
            corrected = self._draft_errors.corrected(self._plausible, float(self._first._state[0]))
            self._costs = replace(corrected, verify=self._of.verify)
        return self._costs

    @property
    def lookup_costs(self) -> Costs:
        return self._first.lookup_costs

    @property
    def first(self) -> LiveCosts:
        return self._first

    def observe_pass(
        self, took: PassTimes, expected_draft_s: tuple[float, float] = (0.0, 0.0), requests: int = 1
    ) -> None:
        self._first.observe_pass(took, requests=requests)
        self.observe_draft(took.draft_s, expected_draft_s)

    def observe_draft(self, draft_s: float, expected_s: tuple[float, float]) -> None:
        self._compare_draft(draft_s, expected_s, float(self._first._state[0]))
        self._of = None

    def observe_plain(self, passes: Sequence[PassTimes], requests: int = 1) -> None:
        self._first.observe_plain(passes, requests)

    def costs_from(self, rows: int) -> Costs:
        return replace(self.costs, verify=self._first.costs_from(rows).verify)

    def findings(self, untried: bool) -> CostFindings:
        """What the first's filter says of the target's passes is stored with the first's costs."""
        drafts = self._draft_errors.corrected(self._plausible, self._first._found_speed)
        found = replace(drafts, verify=self.calibrated.verify, experts=self.calibrated.experts)
        return CostFindings(self.calibrated, found, self._first._seconds, untried, contradicted=False)
