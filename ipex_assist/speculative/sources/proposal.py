"""What a draft source proposes: tokens, and how sure it is of them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens, and the source's confidence in each, between 0 and 1.

    confidence: empty if the source has none. read: tokens that a model read before it drafted these; 0 without a model.
    """

    tokens: list[int]
    confidence: list[float] = field(default_factory=list)
    read: int = 0


NO_PROPOSAL = Proposal([])
