"""Statistics of one generation, counted from its rounds."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ipex_assist.decode import Round


@dataclass
class Statistics:
    """Counts and times in seconds. A round here is one pass of the target after the prompt's.

    Drafted and accepted tokens count even where a stop cut the last round short: they say how good the draft is,
    and `new_tokens` says what the user got.
    """

    prompt_tokens: int
    new_tokens: int = 0
    ttft_s: float | None = None
    decode_s: float = 0.0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_s: float = 0.0
    target_s: float = 0.0
    accepted_histogram: list[int] = field(default_factory=list)
    _started: float = field(default_factory=time.perf_counter, repr=False)

    def count(self, round_: Round, kept: int) -> None:
        """Take in one round of which `kept` tokens went into the text."""
        elapsed = time.perf_counter() - self._started
        self.new_tokens += kept
        if round_.prompt:
            self.ttft_s = elapsed
            return
        self.decode_s = elapsed - (self.ttft_s or 0.0)
        self.rounds += 1
        self.drafted += round_.drafted
        self.accepted += round_.accepted
        self.draft_s += round_.draft_s
        self.target_s += round_.target_s
        self.accepted_histogram += [0] * (round_.accepted + 1 - len(self.accepted_histogram))
        self.accepted_histogram[round_.accepted] += 1

    @property
    def tokens_per_s(self) -> float | None:
        """Decode speed: tokens after the first ÷ seconds after the first; None before there are any."""
        return (self.new_tokens - 1) / self.decode_s if self.rounds and self.decode_s > 0 else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted ÷ drafted tokens; None where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_pass(self) -> float | None:
        """Tokens that one pass of the target brought, accepted ones and its own."""
        return (self.accepted + self.rounds) / self.rounds if self.rounds else None
