"""Rotary positions on torch: a rotation, and the tables of rope.py in a model's own type."""

from __future__ import annotations

import torch

from ipex_assist.executors.rope import RotaryTable
from ipex_assist.models.spec import DecoderSpec


class TorchRotary:
    """A RotaryTable whose rows are tensors."""

    def __init__(self, spec: DecoderSpec, dtype: torch.dtype) -> None:
        self._table, self._dtype = RotaryTable(spec), dtype

    def reach(self, length: int) -> None:
        """Have at least the first `length` positions."""
        self._table.reach(length)

    def rows(self, start: int, count: int, prompt_length: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """`RotaryTable.rows` for `rotate`."""
        cos, sin = self._table.rows(start, count, prompt_length)
        return torch.from_numpy(cos).to(self._dtype), torch.from_numpy(sin).to(self._dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the halves of each head against each other: x (rows, heads, head_dim), as Llama's rotate_half does.

    Where the tables are narrower than heads, the values after them stay.
    """
    rotated = cos.shape[-1]
    if rotated < x.shape[-1]:
        return torch.cat((rotate(x[..., :rotated], cos, sin), x[..., rotated:]), -1)
    return torch.addcmul(x * cos, torch.roll(x, rotated // 2, -1), sin)
