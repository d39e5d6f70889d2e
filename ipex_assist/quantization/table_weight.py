"""A matrix of 4-bit values that are looked up in a table, in groups that share a scale; independent of file formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from ipex_assist.quantization.int4_weight import nibbles

# E2M1 by code; the highest bit is the sign.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


@dataclass(frozen=True)
class TableWeight:
    """weight[n, k] = table[codes[n, k]] · scales[n, k // group] · factor.

    codes: uint8 (columns, width), 0 to 15. table: float32 (16,). scales: float32 (columns, groups). factor: of all. The
    last group may be short.
    """

    codes: torch.Tensor
    table: torch.Tensor
    scales: torch.Tensor
    group: int
    factor: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the float matrix, (columns, width)."""
        return tuple(self.codes.shape)

    def dequantized(self) -> torch.Tensor:
        """The float32 matrix (columns, width). Of E2M1 with scales in E4M3, only `factor` rounds."""
        weight = self.table.index_select(0, self.codes.reshape(-1).int()).view(self.codes.shape)
        groups = torch.arange(self.shape[1]) // self.group
        weight.mul_(self.scales if self.scales.shape[1] == 1 else self.scales[:, groups])
        return weight if self.factor == 1 else weight.mul_(self.factor)

    def rows(self, take: Callable[[torch.Tensor], torch.Tensor]) -> TableWeight:
        """Some of the output columns: `take` selects rows of a matrix."""
        return replace(self, codes=take(self.codes), scales=take(self.scales))


def e2m1(packed: torch.Tensor, scales: torch.Tensor, group: int, factor: float = 1.0) -> TableWeight:
    """A matrix of E2M1, two values in a byte and the first in its lower bits: packed uint8 (columns, width / 2)."""
    return TableWeight(nibbles(packed), torch.tensor(E2M1), scales, group, factor)
