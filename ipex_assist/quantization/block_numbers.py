"""The core's numbers of the blocks that other checkpoints' matrices become (stored_blocks.py). Never imports torch."""

from __future__ import annotations

# The core's numbers: BLOCK_FORMAT and GGMLQuantizationType.
Q4_0, Q5_0, Q8_0, TQ2_0, MXFP4, NVFP4 = 66, 70, 72, 99, 103, 104
NF4, FP4 = 264, 265  # bitsandbytes': 64 values, an fp32 scale, two codes in a byte and the first in the upper bits
# GPTQ's, with an fp16 scale for 32 or 128 columns (native/formats/blocks/format.h: IntegerFormat).
INT2_32, INT2_128, INT3_32, INT3_128 = 266, 267, 268, 269
FEW_BITS = {INT2_32: 2, INT2_128: 2, INT3_32: 3, INT3_128: 3}
COLUMNS = {  # of a block
    **{INT2_32: 32, INT2_128: 128, INT3_32: 32, INT3_128: 128, Q4_0: 32, Q5_0: 32, Q8_0: 32},
    **{TQ2_0: 256, MXFP4: 32, NVFP4: 64, NF4: 64, FP4: 64},
}
RANGES = {  # the smallest blocks first
    **{INT2_128: (-2, 1), INT2_32: (-2, 1), INT3_128: (-4, 3), INT3_32: (-4, 3)},
    **{Q4_0: (-8, 7), Q5_0: (-16, 15), Q8_0: (-128, 127)},
}
# What the core takes a code of bitsandbytes for, of FP4 without the sign.
NF4_VALUES = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
FP4_VALUES = tuple(value / 192 for value in (0, 1, 128, 192, 64, 96, 32, 48))


def integers_in(least: int, most: int, columns: int) -> int | None:
    """The smallest format of numbers from `least` to `most` where `columns` share a scale; None: there is none."""
    fitting = (kind for kind in RANGES if columns % COLUMNS[kind] == 0)
    return next((kind for kind in fitting if RANGES[kind][0] <= least and most <= RANGES[kind][1]), None)
