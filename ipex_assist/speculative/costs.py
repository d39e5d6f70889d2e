"""What passes cost, in seconds, as calibration measured it."""

from __future__ import annotations

from dataclasses import dataclass

from ipex_assist.executors.interface import ALL_THREADS, PassThreads
from ipex_assist.speculative.expert_costs import ExpertCosts


@dataclass(frozen=True)
class Costs:
    """Seconds of passes, measured by calibration.py.

    verify: the target's pass over 1, 2, … rows, never falling. draft: one drafted token. rows: the draft's pass over
    1, 2, … 16 rows, by which it catches up; read: each token of a longer stretch. A source without a model has zeros.
    experts: of a target that is a mixture of them. threads: those that ran the draft's passes.
    """

    verify: tuple[float, ...]
    draft: float = 0.0
    rows: tuple[float, ...] = ()
    read: float = 0.0
    experts: ExpertCosts | None = None
    threads: PassThreads = ALL_THREADS

    def reading(self, unread: int) -> float:
        """Return the seconds to read `unread` tokens, beyond the one row that a draft step reads anyway."""
        if unread <= 1 or not self.rows:
            return 0.0
        if unread <= len(self.rows):
            return max(0.0, self.rows[unread - 1] - self.rows[0])
        return unread * self.read

    def verifying(self, rows: int) -> float:
        """Return the seconds of the target's pass over `rows` rows; beyond what was measured its mean slope goes on."""
        known = len(self.verify)
        if rows <= known:
            return self.verify[rows - 1]
        slope = (self.verify[-1] - self.verify[0]) / (known - 1) if known > 1 else self.verify[0]
        return self.verify[-1] + slope * (rows - known)
