"""AWQ's layout of 4-bit weights, as AutoAWQ writes it for its GEMM kernels (version "gemm").

qweight  int32 (in, out / 8)       8 output columns in a word, in the order ORDER from the lowest bits up
qzeros   int32 (groups, out / 8)   in the same order
scales   fp16  (groups, out)
"""

from __future__ import annotations

import torch

from ipex_assist.quantization.int4_weight import Int4Weight, nibbles

# The output column in each of a word's eight 4-bit fields: even columns first, so that one mask gives a GPU two
# neighbours.
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def unpack(tensors: dict[str, torch.Tensor], group: int) -> Int4Weight:
    """The matrix of a module's tensors, which are keyed by the last part of their names."""
    return Int4Weight(
        values=columns(tensors["qweight"]),
        scales=tensors["scales"].float().t().contiguous(),
        zeros=columns(tensors["qzeros"]),
        group=group,
    )


def columns(packed: torch.Tensor) -> torch.Tensor:
    """int32 (rows, out / 8) to uint8 (out, rows)."""
    field_of = [ORDER.index(column) for column in range(8)]
    fields = nibbles(packed).view(packed.shape[0], -1, 8)
    return fields[:, :, field_of].flatten(1).t().contiguous()
