"""The packed layout of compressed-tensors ("pack-quantized"): integers of 4 or 8 bits in words of 32.

Values are stored plus half their range, so that they are unsigned, the first of a word in its lowest bits. Zero points
are packed in the same way along the output columns.
"""

from __future__ import annotations

import torch

from ipex_assist.quantization.int4_weight import Int4Weight, nibbles
from ipex_assist.quantization.scaled_weight import ScaledWeight


def unpack(
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    *,
    width: int,
    group: int,
    group_index: torch.Tensor | None,
    bits: int,
) -> Int4Weight | ScaledWeight:
    """The matrix of packed int32 (columns, words), scales float32 (columns, groups), and zero points or None.

    zeros: int32 (columns in words, groups), or int8 (columns, groups). ValueError where they have another shape.
    """
    values = _fields(packed, bits)[:, :width].contiguous()
    offsets = _zeros(zeros, (scales.shape[0], scales.shape[1]), bits)
    if bits == 4:
        return Int4Weight(values, scales.contiguous(), offsets, group, group_index)
    signed = (values ^ 128).view(torch.int8)  # less 128, as a signed byte
    plain = bool((offsets == 128).all())
    return ScaledWeight(signed, scales, group, None if plain else (offsets ^ 128).view(torch.int8), group_index)


def _zeros(zeros: torch.Tensor | None, shape: tuple[int, int], bits: int) -> torch.Tensor:
    """Zero points as unsigned bytes (columns, groups); half the range where there are none."""
    half = 1 << (bits - 1)
    if zeros is None:
        return torch.full(shape, half, dtype=torch.uint8)
    if zeros.dtype == torch.int32 and zeros.dim() == 2 and zeros.shape[0] == -(-shape[0] * bits // 32):
        return _fields(zeros.t(), bits).t()[: shape[0]].contiguous()
    if zeros.dtype == torch.int8 and tuple(zeros.shape) == shape:
        return (zeros.to(torch.int16) + half).to(torch.uint8)
    raise ValueError(f"its zero points are {tuple(zeros.shape)} in {zeros.dtype}, and its scales {shape}")


def _fields(packed: torch.Tensor, bits: int) -> torch.Tensor:
    return nibbles(packed) if bits == 4 else packed.contiguous().view(torch.uint8)
