"""Keys and values of one text as tensors: allocated once, rolled back by setting a length."""

from __future__ import annotations

import torch

from ipex_assist.models.spec import DecoderSpec


class KVCache:
    """Keys and values, a pair of tensors (num_key_value_heads, rows, head_dim) per layer.

    Rows that no token has are scratch: they hold padding rows of earlier passes, or zeros. They must be finite numbers
    for a masked row to add an exact zero to attention's sums; so a new text begins with zeros, whatever the last left.
    """

    def __init__(self, spec: DecoderSpec, rows: int, dtype: torch.dtype, layers: int | None = None) -> None:
        shape = (spec.num_key_value_heads, rows, spec.head_dim)
        count = spec.num_hidden_layers if layers is None else layers
        # zeros are not touched until written: a page costs memory only once a token reaches it.
        self.keys = [torch.zeros(shape, dtype=dtype) for _ in range(count)]
        self.values = [torch.zeros(shape, dtype=dtype) for _ in range(count)]
        self._written = 0  # rows that hold anything but zeros

    def clear(self) -> None:
        """Zeros again, as for a new text."""
        for tensor in (*self.keys, *self.values):
            tensor[:, : self._written].zero_()
        self._written = 0

    def copy_from(self, other: KVCache) -> None:
        """Hold what `other` holds, which has the same shape, where this one is new."""
        self._written = other._written
        for own, theirs in zip((*self.keys, *self.values), (*other.keys, *other.values), strict=True):
            own[:, : self._written] = theirs[:, : self._written]

    def write(self, layer: int, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Put rows (rows, num_key_value_heads, head_dim) at positions from `start` on."""
        end = start + keys.shape[0]
        self._written = max(self._written, end)
        self.keys[layer][:, start:end] = keys.transpose(0, 1)
        self.values[layer][:, start:end] = values.transpose(0, 1)
