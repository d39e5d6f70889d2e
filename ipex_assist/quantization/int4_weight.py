"""A matrix of values of 4 bits or fewer in groups that share a scale and a zero, independent of file formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class Int4Weight:
    """weight[n, k] = scales[n, g] · (values[n, k] - zeros[n, g]), where g is k // group, or group_index[k].

    values: uint8 (columns, width), 0 to 15. scales: float32 (columns, groups). zeros: uint8 (columns, groups), 0 to 15.
    What has 2 or 3 bits in a file is the same with smaller values.
    group_index: int64 (width,), where input columns were quantized in another order than stored (act-order).
    The last group may be short.
    """

    values: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    group: int
    group_index: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the float matrix, (columns, width)."""
        return tuple(self.values.shape)

    def groups_of_columns(self) -> torch.Tensor:
        """The group of each input column, int64 (width,)."""
        return plain_groups(self.shape[1], self.group) if self.group_index is None else self.group_index

    def dequantized(self) -> torch.Tensor:
        """The float32 matrix (columns, width); exact, for fp16 and bf16 scales."""
        groups = self.groups_of_columns()
        weight = self.values.to(torch.float32)
        # Exact: values and zeros are small integers, and the product has at most 11 + 5 significant bits.
        return weight.sub_(self.zeros.to(torch.float32)[:, groups]).mul_(self.scales[:, groups])

    def rows(self, take: Callable[[torch.Tensor], torch.Tensor]) -> Int4Weight:
        """Some of the output columns: `take` selects rows of a matrix."""
        return replace(self, values=take(self.values), scales=take(self.scales), zeros=take(self.zeros))

    def ordered(self, order: torch.Tensor) -> Int4Weight | None:
        """The matrix with column order[i] as input column i; None where its groups would not be consecutive."""
        groups = self.groups_of_columns()[order]
        if not torch.equal(groups, plain_groups(self.shape[1], self.group)):
            return None
        return replace(self, values=self.values[:, order], group_index=None)

    def in_groups_of(self, group: int) -> Int4Weight:
        """The same matrix in smaller groups; `group` divides the present size, unless there is a single group."""
        width, groups = self.shape[1], self.scales.shape[1]
        assert self.group_index is None, "groups must be consecutive"
        assert groups == 1 or self.group % group == 0, f"groups of {self.group} are no multiple of {group}"
        count = -(-width // group)
        repeats = count if groups == 1 else self.group // group
        scales, zeros = (
            part.repeat_interleave(repeats, 1)[:, :count].contiguous() for part in (self.scales, self.zeros)
        )
        return replace(self, scales=scales, zeros=zeros, group=group)


def plain_groups(width: int, group: int) -> torch.Tensor:
    """The group of each column, int64 (width,), for consecutive groups."""
    return torch.arange(width) // group


def nibbles(words: torch.Tensor) -> torch.Tensor:
    """Unpack int32 (rows, words) to uint8 (rows, 8 · words), the lowest 4 bits of each word first."""
    pairs = words.contiguous().view(torch.uint8)
    return torch.stack((pairs & 15, pairs >> 4), -1).flatten(1)


def fields(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Unpack int32 (rows, words) to uint8 (rows, 32 · words / bits); bits: 2, 3, 4 or 8.

    A row is a stream of bits, of which the lowest of each word comes first. Values of 3 bits may begin in one word and
    end in the next one; there are 3 words for 32 of them.
    """
    data = words.contiguous().view(torch.uint8)
    if bits == 8:
        return data
    if bits == 3:
        first, second, third = data.view(len(data), -1, 3).int().unbind(-1)
        joined = first | second << 8 | third << 16
        return torch.stack([(joined >> 3 * i & 7).to(torch.uint8) for i in range(8)], -1).flatten(1)
    return torch.stack([data >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)], -1).flatten(1)


def words(values: torch.Tensor) -> torch.Tensor:
    """Pack uint8 (rows, 8 · words) of 0 to 15 into int32 (rows, words): the inverse of `nibbles`."""
    pairs = values.view(values.shape[0], -1, 2)
    return (pairs[..., 0] | pairs[..., 1] << 4).contiguous().view(torch.int32)
