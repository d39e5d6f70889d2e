"""Passes without drafts: pauses, in which nothing is planned, and those that measure plain decoding. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field

from ipex_assist.speculative.costs.pass_times import PassTimes

# After some passes with drafts, one without measures what plain decoding takes now: at least the first number, so
# that the gain forgone is at most BASELINE_SHARE of the time, and at most the second.
BASELINE_AFTER, BASELINE_SHARE = (8, 48), 0.01


@dataclass
class Baseline:
    """When a pass without drafts is due, which measures what plain decoding takes now.

    passes: with drafts since the last one without. gain: expected of the last drafts. seen: bit lengths of the numbers
    of requests that decoded in passes without drafts and prompts, and those below 8, which calibration times with care.
    """

    passes: int = 0
    gain: float = 1.0
    seen: set[int] = field(default_factory=lambda: {1, 2, 3})

    @property
    def is_due(self) -> bool:
        """Whether the next pass should have no drafts."""
        first, last = BASELINE_AFTER
        return self.passes >= min(last, max(first, (self.gain - 1) / BASELINE_SHARE))

    def count(self, requests: int, gain: float = 0.0) -> None:
        """Count a pass in which `requests` decoded. gain: expected of its drafts; 0 where there were none."""
        self.passes, self.gain = (self.passes + 1, gain) if gain else (0, self.gain)
        if not gain:
            self.seen.add(requests.bit_length())


@dataclass
class DraftPause:
    """Passes in which nothing will be planned, with the requests there are.

    rested: those that were, not counted yet. resting_s: what each took beside the target's pass, in the last pause.
    """

    passes: int = 0
    rested: list[PassTimes] = field(default_factory=list)
    resting_s: float = 0.0

    def rest(self, took: PassTimes) -> None:
        """Take note of one of its passes."""
        self.passes -= 1
        self.rested.append(took)

    def take_rested(self) -> list[PassTimes]:
        """Return its passes so far, to be counted."""
        rested, self.rested = self.rested, []
        return rested
