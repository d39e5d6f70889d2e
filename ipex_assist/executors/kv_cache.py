"""The key/value cache: allocated once for a sequence, rolled back by setting a length."""

from __future__ import annotations

import torch

from ipex_assist.models.spec import DecoderSpec


class KVCache:
    """Keys and values of one sequence, a pair of tensors (num_key_value_heads, capacity, head_dim) per layer.

    Rows from `length` on are scratch: they hold padding rows of earlier passes or zeros, always finite numbers, so
    that a masked row adds an exact zero to attention's sums.
    """

    def __init__(self, spec: DecoderSpec, capacity: int, dtype: torch.dtype, layers: int | None = None) -> None:
        shape = (spec.num_key_value_heads, capacity, spec.head_dim)
        count = spec.num_hidden_layers if layers is None else layers
        # zeros are not touched until written: a page costs memory only once a token reaches it.
        self.keys = [torch.zeros(shape, dtype=dtype) for _ in range(count)]
        self.values = [torch.zeros(shape, dtype=dtype) for _ in range(count)]
        self.capacity = capacity
        self.length = 0

    def truncate(self, length: int) -> None:
        """Forget all rows from `length` on."""
        assert 0 <= length <= self.length, f"cannot truncate {self.length} rows to {length}"
        self.length = length

    def write(self, layer: int, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Put rows (rows, num_key_value_heads, head_dim) at positions from `start` on; `length` stays."""
        end = start + keys.shape[0]
        self.keys[layer][:, start:end] = keys.transpose(0, 1)
        self.values[layer][:, start:end] = values.transpose(0, 1)
