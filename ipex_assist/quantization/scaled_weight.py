"""A matrix of 8-bit values, integers or FP8, that share scales by column groups; independent of file formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from ipex_assist.quantization.int4_weight import plain_groups


@dataclass(frozen=True)
class ScaledWeight:
    """weight[n, k] = scales[n, g] · (values[n, k] - zeros[n, g]), where g is k // group, or group_index[k].

    values: int8 or float8_e4m3fn (columns, width). scales: float32 (columns, groups). zeros: int8 (columns, groups), or
    None where all are 0. group_index: int64 (width,), where input columns were quantized in another order than stored.
    The last group may be short.
    """

    values: torch.Tensor
    scales: torch.Tensor
    group: int
    zeros: torch.Tensor | None = None
    group_index: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the float matrix, (columns, width)."""
        return tuple(self.values.shape)

    def dequantized(self) -> torch.Tensor:
        """The float32 matrix (columns, width); each product is rounded once, to fp32."""
        weight = self.values.to(torch.float32)
        groups = plain_groups(self.shape[1], self.group) if self.group_index is None else self.group_index
        if self.zeros is not None:
            weight.sub_(self.zeros.to(torch.float32)[:, groups])
        return weight.mul_(self.scales if self.scales.shape[1] == 1 else self.scales[:, groups])

    def rows(self, take: Callable[[torch.Tensor], torch.Tensor]) -> ScaledWeight:
        """Some of the output columns: `take` selects rows of a matrix."""
        zeros = None if self.zeros is None else take(self.zeros)
        return replace(self, values=take(self.values), scales=take(self.scales), zeros=zeros)


def scales_of_rows(scales: torch.Tensor, columns: int, block: int) -> torch.Tensor:
    """Scales as ScaledWeight has them, float32 (columns, groups), from those of blocks of `block` output columns.

    scales: (blocks of rows, groups), (blocks of rows,), or a single number.
    """
    scales = scales.to(torch.float32)
    scales = scales.reshape(1, 1) if scales.numel() == 1 else scales.reshape(scales.shape[0], -1)
    return scales.repeat_interleave(columns if scales.shape[0] == 1 else block, 0)[:columns].contiguous()
