"""Draft sources: the protocol of what guesses the next tokens, for the target to verify, and what it proposes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens, and how sure the source is of each, between 0 and 1, by which the schedule learns when to stop.

    `confidence` is empty where the source has none to give. read: tokens that a model read before it drafted these; 0
    where none was asked.
    """

    tokens: list[int]
    confidence: list[float] = field(default_factory=list)
    read: int = 0


class DraftSource(Protocol):
    """Guesses tokens, and is told how many of them were right."""

    def unread(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens` the source must read before it can draft; 0 where reading costs nothing."""
        ...

    def propose(
        self, tokens: Sequence[int], k: int, *, min_confidence: float = 0.0, context: int | None = None
    ) -> Proposal:
        """Draft at most `k` tokens to follow `tokens`, the whole text so far; fewer, or none, where it cannot.

        min_confidence: end behind a token to which the source gives a smaller probability. context: go on with what was
        read so far, or, where more than so many tokens are unread, start anew with the last so many of the text; None
        reads all of the text.
        """
        ...

    def accept(self, count: int) -> None:
        """Take note that `count` of the last proposal's tokens were kept; the rest never happened."""
        ...
