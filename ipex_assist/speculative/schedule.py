"""How many tokens to draft each round: what all schedules share, and the fixed ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

CONSTANT_TOKENS = 3  # four rows are the most that cost a target's pass no more than one on every machine we measured
HEURISTIC_TOKENS = 5  # where transformers' rule starts
LONGEST_DRAFT = 15


@dataclass(frozen=True)
class DraftPlan:
    """At most `k` tokens, ending behind one less likely than `min_confidence`; `context` as in DraftSource."""

    k: int
    min_confidence: float = 0.0
    context: int | None = None


@dataclass(frozen=True)
class RoundState:
    """Where a text stands: tokens so far, tokens that may still come, tokens the draft source has not read."""

    length: int
    remaining: int
    unread: int


@dataclass(frozen=True)
class RoundResult:
    """What came of a plan: drafted and accepted tokens, the draft's confidence in each, seconds of both models.

    experts: distinct ones that the target's pass read, a layer; None where that is not known.
    """

    drafted: int
    accepted: int
    confidence: Sequence[float] = ()
    draft_s: float = 0.0
    target_s: float = 0.0
    experts: float | None = None


class Schedule(Protocol):
    """Says how to draft, and hears what came of it. One object serves one text.

    plain_s: seconds that a pass of one row takes now, as was measured; None where the schedule measures nothing.
    """

    @property
    def plain_s(self) -> float | None:
        """Seconds of a pass of one row, or None."""
        ...

    def plan(self, now: RoundState) -> DraftPlan:
        """Return how to draft in the round to come."""
        ...

    def observe(self, outcome: RoundResult) -> None:
        """Hear what came of the round that was planned last."""
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
        """Ignore the result: a constant number learns nothing."""


class HeuristicSchedule:
    """transformers' `num_assistant_tokens_schedule="heuristic"`: two more after a full hit, one less after a miss."""

    plain_s = None

    def __init__(self, k: int = HEURISTIC_TOKENS) -> None:
        self.k = k

    def plan(self, now: RoundState) -> DraftPlan:
        """Return a plan of as many tokens as the last rounds have left."""
        return DraftPlan(self.k)

    def observe(self, outcome: RoundResult) -> None:
        """Count the number up or down; a round in which nothing could be drafted changes nothing."""
        if outcome.drafted:
            self.k = self.k + 2 if outcome.accepted == outcome.drafted else max(1, self.k - 1)
