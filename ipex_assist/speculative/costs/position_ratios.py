"""How much better or worse drafted tokens are at their position than their confidence says. No torch here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

POSITIONS = 16  # told apart; those after them count as the last of these
CLASSES = 12  # of confidence: the bins of acceptance.py
# Weight, in tokens expected to be accepted, of the belief that a position is as good as the one before it; and standard
# deviations of the number accepted that are taken for chance: drafts that are too short would not correct an error.
_ALIKE_TOKENS, _CHANCE = 8.0, 1.25


@dataclass
class PositionRatios:
    """Decayed counts of verified tokens: by position and class of confidence, and those accepted by position.

    A head that reads its own hidden states drifts away from its target with each token, and the tokens of a block know
    nothing of each other, so that equal confidence means less at later positions. The first position is not counted
    here: its tokens have classes of confidence of their own.
    """

    drafted: Array = field(default_factory=lambda: np.zeros((POSITIONS, CLASSES)))
    accepted: Array = field(default_factory=lambda: np.zeros(POSITIONS))

    def scale(self, factor: float) -> None:
        """Scale the weight of all observations."""
        self.drafted *= factor
        self.accepted *= factor

    def observe(self, position: int, index: int, accepted: bool) -> None:
        """Count a verified token of class `index`."""
        position = min(position, POSITIONS - 1)
        self.drafted[position, index] += 1
        self.accepted[position] += accepted

    def ratios(self, rates: Array) -> list[float]:
        """Acceptance rate ÷ that expected by confidence, of each position; where little was seen, that before it.

        rates: of each class of later tokens, all positions together, (CLASSES,).
        """
        likely, spread = (self.drafted @ rates).tolist(), (self.drafted @ (rates * (1 - rates))).tolist()
        ratio, found = 1.0, [1.0]
        for right, expected, variance in zip(self.accepted[1:].tolist(), likely[1:], spread[1:], strict=True):
            more = right - ratio * expected
            beyond = math.copysign(max(0.0, abs(more) - _CHANCE * math.sqrt(variance)), more)
            ratio += beyond / (expected + _ALIKE_TOKENS)
            found.append(ratio)
        return found

    def copy(self, factor: float = 1.0) -> PositionRatios:
        """A copy whose observations weigh `factor` times as much."""
        return PositionRatios(self.drafted * factor, self.accepted * factor)

    @classmethod
    def from_counts(cls, counts: dict[str, Sequence[Sequence[float] | float]] | None) -> PositionRatios:
        """Restore from `as_counts`; None: nothing was seen. Raises KeyError, TypeError or ValueError otherwise."""
        if counts is None:
            return cls()
        drafted, accepted = (np.array(counts[name], dtype=np.float64) for name in ("drafted", "accepted"))
        if drafted.shape != (POSITIONS, CLASSES) or accepted.shape != (POSITIONS,):
            raise ValueError(f"counts {drafted.shape} and {accepted.shape} of {POSITIONS} positions")
        if not ((drafted >= 0).all() and (drafted < 1e12).all() and (accepted >= 0).all()):
            raise ValueError("counts that cannot be")
        if not (accepted <= drafted.sum(1) + 1e-6).all():
            raise ValueError("more accepted than drafted")
        return cls(drafted, accepted)

    def as_counts(self) -> dict[str, list[list[float]] | list[float]]:
        """The counts, for JSON."""
        return {"drafted": self.drafted.tolist(), "accepted": self.accepted.tolist()}
