"""Matrices that checkpoints store in other ways as blocks that the native core multiplies: bits are moved, no more.

Blocks are those of GGUF, but for bitsandbytes' and integers of 2 and 3 bits (native/formats/blocks/format.h). Rows are
blocks one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipex_assist.quantization.block_numbers import (
    COLUMNS,
    FEW_BITS,
    FP4,
    FP4_VALUES,
    MXFP4,
    NF4,
    NF4_VALUES,
    NVFP4,
    Q8_0,
    RANGES,
    TQ2_0,
)
from ipex_assist.quantization.int4_weight import Int4Weight
from ipex_assist.quantization.scaled_weight import ScaledWeight
from ipex_assist.quantization.table_weight import TableWeight

if TYPE_CHECKING:
    import torch

StoredWeight = Int4Weight | ScaledWeight | TableWeight


def to_blocks(weight: StoredWeight, kind: int) -> torch.Tensor:
    """The rows of a matrix (columns, width) as uint8 (columns, bytes). The width is a multiple of a block's.

    ValueError where integers do not fit, as in a checkpoint that is symmetric by its config alone.
    """
    import torch

    each = COLUMNS[kind]
    assert weight.shape[1] % each == 0, (weight.shape, kind)
    if isinstance(weight, TableWeight):
        parts = _tables(weight, kind)
    elif kind == TQ2_0:
        assert isinstance(weight, ScaledWeight)
        codes = (weight.values + 1).view(torch.uint8).unflatten(1, (-1, 2, 4, 32))
        packed = codes[:, :, :, 0] | codes[:, :, :, 1] << 2 | codes[:, :, :, 2] << 4 | codes[:, :, :, 3] << 6
        one = torch.ones((), dtype=torch.float16).view(1).view(torch.uint8)  # the scale of all is kept by rows
        parts = [packed.flatten(2), one.expand(*packed.shape[:2], 2)]
    else:
        parts = _integers(weight, kind)
    return torch.cat(parts, -1).flatten(1)


def row_scales(weight: StoredWeight, kind: int) -> torch.Tensor | None:
    """What the products with the blocks of a row are multiplied by, float32 (columns,); None where that is 1."""
    import torch

    if kind == NVFP4:
        assert isinstance(weight, TableWeight)
        return torch.full((weight.shape[0],), weight.factor)
    if kind == TQ2_0:
        return weight.scales.expand(weight.shape[0], 1)[:, 0].contiguous()
    return None


def _integers(weight: Int4Weight | ScaledWeight, kind: int) -> list[torch.Tensor]:
    """Values less their zeros, with a scale for each block."""
    import torch

    assert weight.group_index is None
    each, groups = COLUMNS[kind], weight.scales.shape[1]
    count = weight.shape[1] // each
    repeats = count if groups == 1 else weight.group // each
    scales = weight.scales.to(torch.float16).repeat_interleave(repeats, 1)[:, :count]
    values = weight.values.to(torch.int16)
    if weight.zeros is not None:
        size = weight.shape[1] if groups == 1 else weight.group
        values = values - weight.zeros.to(torch.int16).repeat_interleave(size, 1)[:, : values.shape[1]]
    low, high = RANGES[kind]
    if bool(((values < low) | (values > high)).any()):
        raise ValueError(f"values less their zeros are not all from {low} to {high}")
    head = scales.contiguous().view(torch.uint8).unflatten(1, (-1, 2))
    if kind == Q8_0:
        return [head, values.to(torch.int8).view(torch.uint8).unflatten(1, (-1, 32))]
    codes = (values - low).to(torch.uint8).unflatten(1, (count, -1, 32))
    if kind in FEW_BITS:
        twos = (codes & 3).unflatten(-1, (4, 8)) << torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
        lower, upper = twos.sum(-2).to(torch.uint8), codes >> 2
    else:
        lower, upper = (codes[..., :16] & 15) | codes[..., 16:] << 4, codes >> 4
    parts = [head, lower.flatten(2)]
    if high - low not in (3, 15):  # a bit more
        bits = upper.unflatten(-1, (4, 8)) << torch.arange(8, dtype=torch.uint8)
        parts.insert(1, bits.sum(-1).to(torch.uint8).flatten(2))
    return parts


def _tables(weight: TableWeight, kind: int) -> list[torch.Tensor]:
    import torch

    each, codes = COLUMNS[kind], weight.codes
    if kind in (NF4, FP4):
        known = torch.tensor(NF4_VALUES if kind == NF4 else (*FP4_VALUES, *(-value for value in FP4_VALUES)))
        assert torch.allclose(weight.table, known, atol=1e-6), "another table"
        scales = weight.scales.repeat_interleave(weight.group // each, 1)
        pairs = codes.unflatten(1, (-1, 32, 2))
        return [scales.contiguous().view(torch.uint8).unflatten(1, (-1, 4)), pairs[..., 0] << 4 | pairs[..., 1]]
    if kind == MXFP4:
        exponents = (torch.log2(weight.scales).round() + 127).to(torch.uint8)
        halves = codes.unflatten(1, (-1, 2, 16))
        return [exponents[..., None], halves[:, :, 0] | halves[:, :, 1] << 4]
    scales = weight.scales.to(torch.float8_e4m3fn).view(torch.uint8)
    # Blocks have no negative scales: their sign is that of their values.
    codes = codes ^ (scales >> 7 << 3).repeat_interleave(weight.group, 1)
    halves = codes.unflatten(1, (-1, 4, 2, 8))
    return [(scales & 127).unflatten(1, (-1, 4)), (halves[:, :, :, 0] | halves[:, :, :, 1] << 4).flatten(2)]
