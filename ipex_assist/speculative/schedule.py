"""Schedules of draft lengths: the protocol, and the constant and heuristic ones."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Protocol

from ipex_assist.models.spec import DecoderSpec
from ipex_assist.native.rows import PENDING_ROWS

CONSTANT_TOKENS = 3  # on every machine measured, a pass of four rows costs no more than one of one row
HEURISTIC_TOKENS = 5  # initial value of transformers' heuristic
# Tokens of a draft: with the one before it as many rows as calibration measures. Costs say how many of them pay.
LONGEST_DRAFT = 63
ALL_UNREAD = 1 << 30  # as a plan's context: the source reads all unread tokens, however many


def longest_draft(spec: DecoderSpec) -> int:
    """The most tokens that may be drafted by or for a model: states forget no more."""
    return PENDING_ROWS - 1 if spec.keeps_states else sys.maxsize


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


NOTHING = DraftPlan(0)


@dataclass(frozen=True)
class RoundState:
    """A request's progress: its length in tokens, tokens that may still come, tokens unread by each of its assistants.

    unread: none where the next draft needs no model. rereads: whether each assistant can read later what it skipped; a
    draft head cannot, whose target's hidden states are gone by then.
    """

    length: int
    remaining: int
    unread: tuple[int, ...] = ()
    rereads: tuple[bool, ...] = (True,)


class Schedule(Protocol):
    """Plans drafts of a fixed kind, and observes their outcome. One object per request."""

    def plan(self, now: RoundState) -> DraftPlan:
        """Return how to draft in the next round."""
        ...

    def observe(self, drafted: int, accepted: int) -> None:
        """Record how many tokens of the round that was planned last were drafted, and accepted."""
        ...


class ConstantSchedule:
    """Drafts the same number of tokens every round."""

    def __init__(self, k: int = CONSTANT_TOKENS) -> None:
        self.k = k

    def plan(self, now: RoundState) -> DraftPlan:
        """Return a plan of `k` tokens, always."""
        return DraftPlan(self.k)

    def observe(self, drafted: int, accepted: int) -> None:
        """Nothing to learn."""


class HeuristicSchedule:
    """transformers' `num_assistant_tokens_schedule="heuristic"`: two more after a full hit, one less after a miss."""

    def __init__(self, k: int = HEURISTIC_TOKENS) -> None:
        self.k = k

    def plan(self, now: RoundState) -> DraftPlan:
        """Return a plan of the current number of tokens."""
        return DraftPlan(self.k)

    def observe(self, drafted: int, accepted: int) -> None:
        """Adjust the number; a round without a draft changes nothing."""
        if drafted:
            self.k = self.k + 2 if accepted == drafted else max(1, self.k - 1)
