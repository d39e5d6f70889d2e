"""The base of draft sources, which propose tokens for the target to verify."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from ipex_assist.speculative.schedule import DraftPlan
from ipex_assist.speculative.sources.batched_proposals import Steps, propose_alone
from ipex_assist.speculative.sources.proposal import Proposal

Source = TypeVar("Source", bound="DraftSource")


class DraftSource(ABC):
    """Proposes tokens, and is told how many of them were accepted.

    sources: those that it asks for drafts. may_pause: nothing but its schedule's plans makes it draft.
    """

    sources: Sequence[DraftSource] = ()
    may_pause: bool = False

    def find(self, kind: type[Source]) -> Source | None:
        """Return the source of this class: this one, or the first among those that it asks; None if there is none."""
        if isinstance(self, kind):
            return self
        return next((found for each in self.sources if (found := each.find(kind)) is not None), None)

    @property
    def drafted_by(self) -> str | None:
        """Who made the last proposal; None where one source makes all of them."""
        return None

    @abstractmethod
    def unread(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens` the source must read before it can draft; 0 if reading costs nothing."""

    @abstractmethod
    def steps(self, tokens: Sequence[int], plan: DraftPlan) -> Steps:
        """Draft by `plan` to follow `tokens`, prompt and output so far: at most `plan.k` tokens, possibly none.

        A generator: it yields calls of a model, which may be answered together with those of other requests, is sent
        their answers, and returns the proposal.
        """

    def propose(
        self, tokens: Sequence[int], k: int, *, min_confidence: float = 0.0, context: int | None = None
    ) -> Proposal:
        """The proposal for one request alone; see DraftPlan."""
        return propose_alone(self.steps(tokens, DraftPlan(k, min_confidence, context)))

    @abstractmethod
    def accept(self, count: int) -> None:
        """Roll back to the first `count` tokens of the last proposal, which were accepted."""
