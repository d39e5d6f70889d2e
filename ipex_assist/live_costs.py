"""What passes cost at this moment: calibration's costs, corrected by what the rounds of a text take."""

from __future__ import annotations

import numpy as np

from ipex_assist.schedule import Costs, Outcome

_RATE = 0.1  # by which one pass changes what is believed of the machine's speed
_DOUBT, _CERTAIN = 3.0, 12.0  # passes that calibration weighs for its number of rows, and most that count against it


class LiveCosts:
    """One factor for the machine's speed, which others and the length of the text change, and one a number of rows.

    Calibration has a second for some twenty passes, and what disturbs one of them makes its number of rows look dear:
    the passes of the text itself tell. Numbers of rows without a pass lie between their neighbours.
    """

    def __init__(self, calibrated: Costs) -> None:
        self._calibrated = calibrated
        self._verify = np.array(calibrated.verify)
        self._speed: float | None = None  # seconds per calibrated second
        self._factors: dict[int, tuple[float, float]] = {}  # by rows: on top of the speed, and passes behind it
        self._draft = 1.0
        self._drafts = 0
        self.costs = calibrated
        self.copying = Costs(calibrated.verify)  # for a source that costs nothing

    def observe(self, outcome: Outcome, read: int) -> None:
        """Compare the seconds that a round took with those that were expected; `read` tokens were unread before."""
        rows = outcome.drafted + 1
        self._observe_pass(rows, outcome.target_s / self._calibrated.verifying(rows))
        if outcome.drafted and read and self._calibrated.draft:
            expected = outcome.drafted * self._calibrated.draft + self._calibrated.reading(read)
            ratio = outcome.draft_s / (expected * (self._speed or 1.0))
            if ratio > 0:
                self._drafts += 1
                self._draft += max(_RATE, 1 / (self._drafts + 1)) * (_near(ratio, self._draft) - self._draft)
        self._price()

    def _observe_pass(self, rows: int, ratio: float) -> None:
        if ratio <= 0:
            return
        factor, passes = self._factors.get(rows, (1.0, 0.0))
        if self._speed is None:
            self._speed = _near(ratio, 1.0, 4.0)
        self._speed += _RATE * (_near(ratio / factor, self._speed) - self._speed)
        factor += (_near(ratio / self._speed, factor) - factor) / (passes + _DOUBT)
        self._factors[rows] = factor, min(passes + 1, _CERTAIN)

    def _price(self) -> None:
        speed, rows = self._speed or 1.0, sorted(self._factors)
        if rows:
            factors = np.interp(np.arange(1, len(self._verify) + 1), rows, [self._factors[row][0] for row in rows])
            # A pass of more rows is never cheaper, whatever a disturbed measurement says.
            verify = tuple(np.maximum.accumulate(self._verify * factors * speed).tolist())
        else:
            verify = self._calibrated.verify
        draft = speed * self._draft
        old = self._calibrated
        self.costs = Costs(verify, old.draft * draft, tuple(row * draft for row in old.rows), old.read * draft)
        self.copying = Costs(verify)


def _near(ratio: float, value: float, most: float = 2.0) -> float:
    """A pause of the machine counts no more than a pass of `most` times the length."""
    return min(max(ratio, value / most), value * most)
