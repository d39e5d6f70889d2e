"""What DFlash 2 adds to a block of drafts: convolutions over its rows, and a choice by the token before.

The arithmetic is that of speculators 0.9 (models/dflash2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ipex_assist.executors.torch.kernels import Linear


@dataclass
class DynamicConv:
    """A causal convolution before and one after a part of a layer; each row scales its weights, group by group."""

    base: torch.Tensor  # (2, kernel_size, hidden): before, after
    projection: Linear  # (rows, hidden) → (rows, 2 · kernel_size · groups)

    def enter(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows x (rows, hidden) of a block after the first, and the second's scales (rows, kernel_size, groups)."""
        before, after = self.projection(x).view(len(x), 2, self.base.shape[1], -1).unbind(1)
        return convolved(x, before, self.base[0]), after

    def leave(self, x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """The rows x of a block after the second one."""
        return convolved(x, scales, self.base[1])


def convolved(x: torch.Tensor, scales: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """The sum over t of x[row - t] · (base[t] + scales[row, t]), of rows that there are.

    x: (rows, hidden). base: (kernel_size, hidden). scales: (rows, kernel_size, groups), of neighbouring columns.
    """
    rows, groups = x.view(len(x), scales.shape[2], -1), base.view(len(base), scales.shape[2], -1)
    made = torch.zeros_like(rows)
    for tap in range(min(len(base), len(x))):
        made[tap:] += rows[: len(x) - tap] * (groups[tap] + scales[tap:, tap, :, None])
    return made.view_as(x)


@dataclass
class Selector:
    """Chooses each token of a block among the likeliest ones, by the token before it."""

    before: torch.Tensor  # (vocab, rank), of the token before
    after: torch.Tensor  # (vocab, rank), of a candidate
    projection: Linear  # (rows, hidden) → (rows, rank)
    candidates: int

    def choose(self, logits: torch.Tensor, hidden: torch.Tensor, last: int) -> tuple[int, float]:
        """The best token after `last` by logits (vocab,) and a row (1, hidden); and its share among the candidates."""
        found = logits.topk(min(self.candidates, len(logits)))
        context = self.before[last] * self.projection(hidden)[0].to(self.before.dtype)
        scores = found.values + (self.after[found.indices] * context).sum(1).to(found.values.dtype)
        best = int(scores.argmax())
        return int(found.indices[best]), float(torch.softmax(scores.float(), 0)[best])
