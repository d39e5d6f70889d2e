"""Rotary embedding on torch: the rotation, and the cos and sin tables of rope.py in a model's dtype."""

from __future__ import annotations

import torch

from ipex_assist.executors.image_rows import PromptImages
from ipex_assist.executors.rope import RotaryTable
from ipex_assist.models.attention_spec import AttentionSpec
from ipex_assist.models.spec import DecoderSpec


class TorchRotary:
    """A RotaryTable whose rows are tensors of a model's dtype."""

    def __init__(self, spec: DecoderSpec, dtype: torch.dtype) -> None:
        self._table, self._dtype = RotaryTable(spec), dtype

    def reach(self, length: int) -> None:
        """Compute the tables of at least the first `length` positions."""
        self._table.reach(length)

    def rows(
        self, start: int, count: int, prompt_length: int | None, images: PromptImages | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`RotaryTable.rows`, or those of a prompt with images, as tensors, for `rotate`."""
        if images is None:
            cos, sin = self._table.rows(start, count, prompt_length)
        else:
            cos, sin = self._table.at(images.positions(start, count))
        return torch.from_numpy(cos).to(self._dtype), torch.from_numpy(sin).to(self._dtype)


def entry_angles(
    rotary: TorchRotary | None, attention: AttentionSpec, columns: slice | None, length: int
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """By which entries, or pools, of `length` positions are rotated, from the first on; None where there are none."""
    step = 0 if attention.latent is None else attention.latent.compressed[1]
    step = step if attention.indexer is None else attention.indexer.pool
    if rotary is None or columns is None or not step:
        return None
    rotary.reach(length)
    cos, sin = rotary.rows(0, length, None)
    return cos[::step, :, columns], sin[::step, :, columns]


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Apply rotary embedding to x (rows, heads, head_dim), pairing the halves of a head as Llama's rotate_half does.

    cos, sin: (rows, 1, rotary_dim). Where rotary_dim is less than head_dim, the rest of each head is unchanged.
    """
    rotary_dim = cos.shape[-1]
    if rotary_dim < x.shape[-1]:
        return torch.cat((rotate(x[..., :rotary_dim], cos, sin), x[..., rotary_dim:]), -1)
    return torch.addcmul(x * cos, torch.roll(x, rotary_dim // 2, -1), sin)
