"""Rejection sampling, which noise by position took the place of: the rival in sampling.py's comparison.

Leviathan et al. 2023 (arXiv:2211.17192), algorithm 1; Chen et al. 2023 (arXiv:2302.01318). A drafted token x stays with
probability min(1, p(x) / q(x)); the first that does not is replaced by a draw from max(0, p - q).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ipex_assist.executors.interface import Rows
from ipex_assist.speculative.assistant_model import AssistantModel
from ipex_assist.speculative.batched_proposals import RowsCall, Steps
from ipex_assist.speculative.draft_source import Proposal
from ipex_assist.speculative.sampling import Row, Sampling, filtered_tokens

Distribution = NDArray[np.float64]


def distribution(row: Row, sampling: Sampling) -> Distribution:
    """What tokens are drawn from, (vocab,), by a row of logits."""
    ids = filtered_tokens(row, sampling)
    logits = (row if ids is None else row[ids]).astype(np.float64) / sampling.temperature
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    if ids is None:
        return weights
    dense = np.zeros(len(row))
    dense[ids] = weights
    return dense


def draw(weights: Distribution, random: np.random.Generator) -> int:
    """Draw one token; the weights need not sum to 1."""
    sums = weights.cumsum()
    return int(sums.searchsorted(random.random() * sums[-1], side="right"))


class DrawingAssistant(AssistantModel):
    """A draft that is drawn by chance of its own, and keeps the distributions that it was drawn from."""

    def __init__(self, random: np.random.Generator, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.random = random
        self.distributions: list[Distribution] = []

    def _decode(
        self, tokens: Sequence[int], pending: list[int], k: int, min_confidence: float, left_out: tuple[int, int]
    ) -> Steps:
        read = len(pending)
        drafted: list[int] = []
        confidence: list[float] = []
        self.distributions = []
        while len(drafted) < k and (not confidence or confidence[-1] >= min_confidence):
            logits = yield RowsCall(self.model, Rows(self._sequence, pending), self._choices)
            found = distribution(logits[0].float().numpy(), self.sampling)
            token = draw(found, self.random)
            self.distributions.append(found)
            drafted.append(token)
            confidence.append(float(found[token]))
            pending = [token]
        return Proposal(drafted, confidence, read)


def verify(
    logits: torch.Tensor,
    drafted: Sequence[int],
    draft: Sequence[Distribution],
    sampling: Sampling,
    random: np.random.Generator,
) -> tuple[list[int], int]:
    """Keep some drafted tokens and add one; logits (len(drafted) + 1, vocab). Returns (tokens, accepted)."""
    rows = logits.float().numpy()
    for i, token in enumerate(drafted):
        p, q = distribution(rows[i], sampling), draft[i]
        if random.random() * q[token] < p[token]:
            continue
        residual = np.maximum(p[: len(q)] - q, 0.0)
        residual = np.concatenate((residual, p[len(q) :]))
        return [*drafted[:i], draw(residual if residual.sum() > 0 else p, random)], i
    return [*drafted, draw(distribution(rows[len(drafted)], sampling), random)], len(drafted)
