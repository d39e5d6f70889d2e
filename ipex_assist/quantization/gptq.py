"""GPTQ's layout of 4-bit weights, reading and writing, as AutoGPTQ and GPTQModel have it.

qweight  int32 (in / 8, out)       8 input columns in a word, the first in the lowest bits
qzeros   int32 (groups, out / 8)   8 output columns in a word; format "gptq" stores zero - 1, "gptq_v2" the zero
scales   fp16  (groups, out)
g_idx    int32 (in)                the group of each input column
"""

from __future__ import annotations

import torch

from ipex_assist.quantization.int4_weight import Int4Weight, nibbles, plain_groups, words

# 1 in each of a word's eight 4-bit fields. It is added to and subtracted from whole words, as in GPTQModel: where a
# zero is 0, subtracting borrows from the next field, and adding carries back.
ONES = 0x11111111


def unpack(tensors: dict[str, torch.Tensor], group: int, *, minus_one: bool) -> Int4Weight:
    """The matrix of a module's tensors, keyed by the last part of their names.

    minus_one: zeros are stored less one (format "gptq").
    """
    qzeros = tensors["qzeros"] + ONES if minus_one else tensors["qzeros"]
    width = tensors["qweight"].shape[0] * 8
    index = tensors.get("g_idx")
    if index is not None:
        index = index.long()
        index = None if torch.equal(index, plain_groups(width, group)) else index
    return Int4Weight(
        values=nibbles(tensors["qweight"].t()),
        scales=tensors["scales"].float().t().contiguous(),
        zeros=nibbles(qzeros).t().contiguous(),
        group=group,
        group_index=index,
    )


def pack(weight: Int4Weight) -> dict[str, torch.Tensor]:
    """The four tensors in format "gptq". Both dimensions must be multiples of 8, and scales fit fp16."""
    return {
        "qweight": words(weight.values).t().contiguous(),
        "qzeros": words(weight.zeros.t().contiguous()) - ONES,
        "scales": weight.scales.t().to(torch.float16).contiguous(),
        "g_idx": weight.groups_of_columns().to(torch.int32),
    }
