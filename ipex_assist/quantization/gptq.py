"""GPTQ's layout of weights of 2, 3, 4 or 8 bits, as AutoGPTQ, GPTQModel and auto-round have it; writing with 4 bits.

qweight  int32 (in · bits / 32, out)       a column's values one after the other, the first in the lowest bits
qzeros   int32 (groups, out · bits / 32)   a group's zeros likewise; format "gptq" stores zero - 1, "gptq_v2" the zero
scales   fp16  (groups, out)
g_idx    int32 (in)                        the group of each input column
"""

from __future__ import annotations

import torch

from ipex_assist.quantization.int4_weight import Int4Weight, fields, plain_groups, words
from ipex_assist.quantization.scaled_weight import ScaledWeight

# 1 in each field of a word. It is added to and subtracted from whole words, as in GPTQModel: where a zero is 0,
# subtracting borrows from the next field, and adding carries back.
ONES = 0x11111111
_ONES_OF_BITS = {2: 0x55555555, 4: ONES, 8: 0x01010101}
# What GPTQModel subtracts of words of 3-bit zeros when it writes format "gptq", and AutoGPTQ since 0.8: of the first of
# three words it has the ones of the third, and the other way round.
_MODEL_ONES = (0x24924924, 0x92492492 - (1 << 32), 0x49249249)


def unpack(
    tensors: dict[str, torch.Tensor],
    group: int,
    *,
    minus_one: bool,
    bits: int = 4,
    maker: str = "",
    symmetric: bool = False,
) -> Int4Weight | ScaledWeight:
    """The matrix of a module's tensors, keyed by the last part of their names.

    minus_one: zeros are stored less one (format "gptq"). maker: the program that wrote them. symmetric: all zeros are
    half the range. ValueError where 3-bit zeros are not, whichever program wrote them.
    """
    width = tensors["qweight"].shape[0] * 32 // bits
    index = tensors.get("g_idx")
    if index is not None:
        index = index.long()
        index = None if torch.equal(index, plain_groups(width, group)) else index
    values, scales = fields(tensors["qweight"].t(), bits), tensors["scales"].float().t().contiguous()
    zeros = zeros_of(tensors["qzeros"], bits, minus_one, maker, symmetric).t().contiguous()
    if bits < 8:
        return Int4Weight(values, scales, zeros, group, index)
    plain = bool((zeros == 128).all())  # both are less 128 then, as signed bytes
    return ScaledWeight(
        (values ^ 128).view(torch.int8), scales, group, None if plain else (zeros ^ 128).view(torch.int8), index
    )


def zeros_of(qzeros: torch.Tensor, bits: int, minus_one: bool, maker: str, symmetric: bool) -> torch.Tensor:
    """Zeros as uint8 (groups, out)."""
    if not minus_one:
        return fields(qzeros, bits)
    if bits != 3:
        return fields(qzeros + _ONES_OF_BITS[bits], bits)
    plain = fields(qzeros, 3) + 1
    by_words = torch.tensor(_MODEL_ONES, dtype=torch.int32).repeat(qzeros.shape[1] // 3)
    theirs = fields(qzeros + by_words, 3)
    if not symmetric:
        return theirs if "gptqmodel" in maker.lower() else plain
    for zeros in (plain, theirs):
        if bool((zeros == 4).all()):
            return zeros
    raise ValueError("it is symmetric by config.json, and its zeros are not 4")


def pack(weight: Int4Weight) -> dict[str, torch.Tensor]:
    """The four tensors in format "gptq". Both dimensions must be multiples of 8, and scales fit fp16."""
    return {
        "qweight": words(weight.values).t().contiguous(),
        "qzeros": words(weight.zeros.t().contiguous()) - ONES,
        "scales": weight.scales.t().to(torch.float16).contiguous(),
        "g_idx": weight.groups_of_columns().to(torch.int32),
    }
