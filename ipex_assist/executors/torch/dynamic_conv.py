"""What DFlash 2 adds to a layer: convolutions over the rows of a block. As in speculators 0.9 (models/dflash2)."""

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
