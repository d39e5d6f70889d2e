"""What a pass took, for those who learn from it. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, replace


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

    def without_drafts(self) -> PassTimes:
        """The same pass, if all that was done before it was to find that nothing should be drafted."""
        return replace(self, draft_s=0.0, overhead_s=self.overhead_s + self.draft_s)

    def of_one(self, requests: int) -> PassTimes:
        """What it took for one of `requests`, where each had a pass of its own."""
        if requests == 1:
            return self
        seconds, draft_s, overhead_s = (each / requests for each in (self.seconds, self.draft_s, self.overhead_s))
        return replace(self, seconds=seconds, draft_s=draft_s, overhead_s=overhead_s, experts=None)
