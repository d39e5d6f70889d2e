"""The cost model: seconds of the target's and the draft's passes, as calibration measured them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ipex_assist.executors.interface import ALL_THREADS, PassThreads
from ipex_assist.speculative.costs.by_rows import seconds_of
from ipex_assist.speculative.costs.expert_costs import ExpertCosts


@dataclass(frozen=True)
class Costs:
    """Seconds of passes, measured by calibration.py.

    verify: the target's pass over 1, 2, … rows, non-decreasing. draft: one drafted token. rows: the draft's pass over
    1, 2, … 16 rows, by which it catches up; read: each token of a longer chunk. All zero for a source without a model.
    experts: of a mixture-of-experts target. threads: that the draft's passes were measured with. block: of a source
    that drafts all its tokens in one pass, whatever their number, the seconds of a pass for 1, 2, … requests; `draft`
    is zero then.
    """

    verify: tuple[float, ...]
    draft: float = 0.0
    rows: tuple[float, ...] = ()
    read: float = 0.0
    experts: ExpertCosts | None = None
    threads: PassThreads = ALL_THREADS
    block: tuple[float, ...] = ()

    def drafting(self, tokens: float) -> float:
        """Return the seconds of drafting `tokens` tokens for one request, without reading."""
        return tokens * self.draft + (self.block[0] if self.block and tokens else 0.0)

    def blocks(self, requests: float) -> float:
        """Return the seconds of a pass that drafts a block for each of `requests`."""
        return seconds_of(self.block, requests) if self.block and requests > 0 else 0.0

    def reading(self, unread: int) -> float:
        """Return the seconds to read `unread` tokens, beyond the one row that the first draft step reads anyway."""
        if unread <= 1 or not self.rows:
            return 0.0
        if unread <= len(self.rows):
            return max(0.0, self.rows[unread - 1] - self.rows[0])
        return unread * self.read

    def plausible(self) -> Costs:
        """Return the costs in which reading a token takes no longer than a step: a measurement above was disturbed."""
        if not self.rows:
            return self
        if self.block:  # it reads and drafts in the same pass
            return replace(self, read=min(self.read, self.block[0]))
        rows = tuple(min(row, self.rows[0] + i * self.draft) for i, row in enumerate(self.rows))
        return replace(self, rows=rows, read=min(self.read, self.draft))

    def verifying(self, rows: int) -> float:
        """Return the seconds of the target's pass over `rows` rows."""
        return seconds_of(self.verify, rows)

    def loss(self, tokens: int, reading_s: float = 0.0) -> float:
        """Return the extra seconds of a round over a plain one, if all of its `tokens` drafted tokens are rejected."""
        return reading_s + self.drafting(tokens) + self.verifying(tokens + 1) - self.verifying(1)
