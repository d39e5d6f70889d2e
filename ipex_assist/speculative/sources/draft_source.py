"""The base of draft sources, which propose tokens for the target to verify, and their proposals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens, and the source's confidence in each, between 0 and 1.

    confidence: empty if the source has none. read: tokens that a model read before it drafted these; 0 without a model.
    """

    tokens: list[int]
    confidence: list[float] = field(default_factory=list)
    read: int = 0


NO_PROPOSAL = Proposal([])
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
    def propose(
        self, tokens: Sequence[int], k: int, *, min_confidence: float = 0.0, context: int | None = None
    ) -> Proposal:
        """Draft at most `k` tokens to follow `tokens`, prompt and output so far; possibly fewer, or none.

        min_confidence: stop after a token with less confidence. context: if more than this many tokens are unread,
        restart from only the last `context` tokens; None reads all of them.
        """

    @abstractmethod
    def accept(self, count: int) -> None:
        """Roll back to the first `count` tokens of the last proposal, which were accepted."""
