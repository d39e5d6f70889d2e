"""Schedules of draft lengths: the protocol, and the constant and heuristic ones."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ipex_assist.models.spec import DecoderSpec

CONSTANT_TOKENS = 3  # on every machine measured, a pass of four rows costs no more than one of one row
HEURISTIC_TOKENS = 5  # initial value of transformers' heuristic
LONGEST_DRAFT = 15


def longest_draft(spec: DecoderSpec) -> int:
    """The most tokens that may be drafted by or for a model: a recurrent state forgets no more rows."""
    return LONGEST_DRAFT if spec.recurrents else sys.maxsize


@dataclass(frozen=True)
class DraftPlan:
    """At most `k` tokens, ending after one with less confidence than `min_confidence`.

    context: if more than this many tokens are unread, the source starts again from only the last `context` tokens; None
    has it read all of them.
    assistant: of two, which one drafts, the first (0) or the second (1).
    """

    k: int
    min_confidence: float = 0.0
    context: int | None = None
    assistant: int = 0


@dataclass(frozen=True)
class RoundState:
    """A request's progress: its length in tokens, tokens that may still come, tokens unread by the draft source.

    rereads: whether the source can read later what it skipped; a draft head cannot, whose target's hidden states are
    gone by then. second: the same for the second of two assistants; None where there is none, or none of them would
    draft.
    """

    length: int
    remaining: int
    unread: int
    rereads: bool = True
    second: RoundState | None = None


@dataclass(frozen=True)
class RoundResult:
    """Outcome of a plan: drafted and accepted tokens, the draft's confidence in each, seconds of both models.

    experts: distinct experts that the target's pass read, mean over the layers; None if unknown. overhead_s: seconds
    that this round took beside both models' passes, and would not have taken if nothing could draft.
    """

    drafted: int
    accepted: int
    confidence: Sequence[float] = ()
    draft_s: float = 0.0
    target_s: float = 0.0
    experts: float | None = None
    overhead_s: float = 0.0


class Schedule(Protocol):
    """Plans drafts, and observes their outcome. One object per request.

    plain_s: current seconds of a pass of one row; None if the schedule measures nothing.
    """

    @property
    def plain_s(self) -> float | None:
        """Seconds of a pass of one row, or None."""
        ...

    def plan(self, now: RoundState) -> DraftPlan:
        """Return how to draft in the next round."""
        ...

    def observe(self, outcome: RoundResult) -> None:
        """Record the outcome of the round that was planned last."""
        ...


class ConstantSchedule:
    """Drafts the same number of tokens every round."""

    plain_s = None

    def __init__(self, k: int = CONSTANT_TOKENS) -> None:
        self.k = k

    def plan(self, now: RoundState) -> DraftPlan:
        """Return a plan of `k` tokens, always."""
        return DraftPlan(self.k)

    def observe(self, outcome: RoundResult) -> None:
        """Nothing to learn."""


class HeuristicSchedule:
    """transformers' `num_assistant_tokens_schedule="heuristic"`: two more after a full hit, one less after a miss."""

    plain_s = None

    def __init__(self, k: int = HEURISTIC_TOKENS) -> None:
        self.k = k

    def plan(self, now: RoundState) -> DraftPlan:
        """Return a plan of the current number of tokens."""
        return DraftPlan(self.k)

    def observe(self, outcome: RoundResult) -> None:
        """Adjust the number; a round without a draft changes nothing."""
        if outcome.drafted:
            self.k = self.k + 2 if outcome.accepted == outcome.drafted else max(1, self.k - 1)
