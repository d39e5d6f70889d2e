"""Keys and values of one text as tensors: allocated once, rolled back by setting a length."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ipex_assist.models.attention_spec import AttentionSpec
from ipex_assist.models.spec import DecoderSpec

_STORED = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}
_LEAST = 1e-36  # smaller rows are zeros: 127 / size would overflow


class KVCache:
    """Keys and values, of each layer tensors (kv_heads, rows, head_dim or value width).

    Rows that no token has are scratch: they hold padding rows of earlier passes, or zeros. They must be finite numbers
    for a masked row to add an exact zero to attention's sums; so a new text begins with zeros, whatever the last left.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        rows: int,
        dtype: torch.dtype,
        kv_precision: str,
        factors: Sequence[torch.Tensor] = (),
        layers: int | None = None,
    ) -> None:
        """dtype: what is read; kv_precision: how it is stored, "fp32", "bf16" or "int8".

        factors: of each layer, what int8 keys are divided by (key_factors.py).
        """
        mixers = [each.mixer if isinstance(each.mixer, AttentionSpec) else None for each in spec.layers[:layers]]
        widths = [
            (each.kv_heads, each.head_dim, each.value_width) if each and not each.shares_kv else (0, 0, 0)
            for each in mixers
        ]
        self._keys = [_Rows((heads, rows, width), dtype, kv_precision) for heads, width, _ in widths]
        self._values = [_Rows((heads, rows, width), dtype, kv_precision) for heads, _, width in widths]
        # What mixers keep beside them, some of which int8 does not narrow.
        wide = {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype] if kv_precision == "int8" else kv_precision
        kept = [(each.beside, wide if each.pools_index else kv_precision) if each else (0, wide) for each in mixers]
        self._beside = [_Rows((1, rows, width), dtype, stored) for width, stored in kept]
        self.noted: torch.Tensor | None = None  # (rows, …) by a layer of this pass for those after it
        self._factors = factors
        self._written = 0  # rows that hold anything but zeros

    def clear(self) -> None:
        """Zeros again, as for a new text."""
        for rows in (*self._keys, *self._values, *self._beside):
            rows.clear(self._written)
        self._written = 0

    def copy_from(self, other: KVCache) -> None:
        """Hold what `other` holds, which has the same shape, where this one is new."""
        self._written = other._written
        parts = ((*each._keys, *each._values, *each._beside) for each in (self, other))
        for own, theirs in zip(*parts, strict=True):
            own.copy_from(theirs, self._written)

    def write(self, layer: int, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Put rows (rows, kv_heads, width) at positions from `start` on."""
        self._written = max(self._written, start + keys.shape[0])
        keys = keys.transpose(0, 1)
        self._keys[layer].write(start, keys / self._factors[layer] if self._factors else keys)
        self._values[layer].write(start, values.transpose(0, 1))

    def read(self, layer: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the first `length` positions: (kv_heads, length, width) each."""
        keys = self._keys[layer].read(length)
        return keys * self._factors[layer].to(keys.dtype) if self._factors else keys, self._values[layer].read(length)

    def write_beside(self, layer: int, start: int, kept: torch.Tensor) -> None:
        """Put what a mixer keeps beside keys and values, (rows, width), at positions from `start` on."""
        self._beside[layer].write(start, kept[None])

    def read_beside(self, layer: int, length: int) -> torch.Tensor:
        """Those of the first `length` positions: (length, width)."""
        return self._beside[layer].read(length)[0]


class _Rows:
    """Keys or values of a layer. int8: each head of each row has a scale of its own, its largest size ÷ 127."""

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype, kv_precision: str) -> None:
        # zeros are not touched until written: a page costs memory only once a token reaches it.
        self.stored = torch.zeros(shape, dtype=_STORED[kv_precision])
        self.scales = torch.zeros((*shape[:2], 1)) if kv_precision == "int8" else None
        self.dtype = dtype

    def clear(self, count: int) -> None:
        self.stored[:, :count].zero_()
        if self.scales is not None:
            self.scales[:, :count].zero_()

    def copy_from(self, other: _Rows, count: int) -> None:
        self.stored[:, :count] = other.stored[:, :count]
        if self.scales is not None and other.scales is not None:
            self.scales[:, :count] = other.scales[:, :count]

    def write(self, start: int, x: torch.Tensor) -> None:
        """x: (kv_heads, rows, width)."""
        end = start + x.shape[1]
        if self.scales is None:
            self.stored[:, start:end] = x
        else:
            self.stored[:, start:end], self.scales[:, start:end] = quantize_rows(x)

    def read(self, length: int) -> torch.Tensor:
        stored = self.stored[:, :length]
        if self.scales is None:
            return stored.to(self.dtype)  # itself where it has that type
        return (stored.float() * self.scales[:, :length]).to(self.dtype)


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x (…, size) as int8 by the largest size in each row, and the scales (…, 1), fp32, that take it back.

    Where a row holds NaN or infinity its scale is NaN. The native core does the same.
    """
    wide = x.float()
    largest = wide.abs().amax(-1, keepdim=True)
    known = torch.isfinite(largest)
    factors = torch.where(known & (largest >= _LEAST), 127 / largest, 0)
    integers = torch.where(known, wide * factors, 0).round().to(torch.int8)
    return integers, torch.where(known, largest / 127, torch.nan)
