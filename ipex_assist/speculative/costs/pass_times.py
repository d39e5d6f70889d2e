"""What a pass took, for those who learn from it. No torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PassTimes:
    """Seconds of a pass of the target, and of the drafting before it.

    rows: of the pass, `read` of them of prompts. experts: distinct experts it read, mean over the layers; None where
    that is not known. overhead_s: what drafting took beside both.
    """

    rows: int
    seconds: float
    draft_s: float = 0.0
    read: int = 0
    experts: float | None = None
    overhead_s: float = 0.0
