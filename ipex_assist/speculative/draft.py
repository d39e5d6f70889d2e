"""Draft sources: what guesses the next tokens, for the target to verify. Here: the protocol, and an assistant model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens and, when sampling, the distributions (len(tokens), vocab) they were drawn from.

    `probabilities` None means the source was certain of its tokens. `confidence` is the probability the source gave
    each token, by which the schedule learns when to stop; empty where the source has none to give.
    """

    tokens: list[int]
    probabilities: torch.Tensor | None = None
    confidence: list[float] = field(default_factory=list)


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
