"""The precisions of linears, and of keys and values: names, bytes, and the group sizes of int4."""

from __future__ import annotations

from typing import Literal, NamedTuple

Precision = Literal["bf16", "fp32", "int8", "int4", "fp8", "mxfp4", "stored"]
KvPrecision = Literal["bf16", "int8"]

# Input columns that share an int4 scale and zero point. Draft models have larger groups: that makes their passes 6 %
# shorter, and an error in a draft costs time only, never quality.
INT4_GROUP = 64
DRAFT_INT4_GROUP = 128


class NumberFormat(NamedTuple):
    """A format of the weights of linears, as the native core has it (native/formats/)."""

    number: int  # native/formats/precision.h: Precision
    weight_bytes: float  # of a weight, with its share of scales; scales of output rows are too small to count
    row_bytes: int  # of a value of the rows that it is multiplied with: 4 fp32, 2 bf16, 1 int8
    depth: int = 128  # input columns are padded to a multiple of it
    experts_only: bool = False  # as checkpoints store experts; the router and all other linears are bf16 then


# int4 has a bf16 scale and a bf16 zero point for each group, fp8 an fp32 scale for 128 inputs of 16 outputs, mxfp4 a
# scale byte for 32 weights. Embeddings and norms are not quantized.
FORMATS = {
    "bf16": NumberFormat(1, 2.0, 2, depth=32),
    "fp32": NumberFormat(0, 4.0, 4, depth=32),
    "int8": NumberFormat(2, 1.0, 1),
    "int4": NumberFormat(3, 0.5 + 4 / INT4_GROUP, 1),
    "fp8": NumberFormat(5, 1 + 4 / 2048, 2),
    "mxfp4": NumberFormat(4, 0.5 + 1 / 32, 1, experts_only=True),
    # What a GGUF file has in blocks as it is, in as many bytes; of everything else bf16. weight_bytes: in Q4_K_M.
    "stored": NumberFormat(1, 0.6, 1),
}
# Types of a GGUF file's tensors (GGMLQuantizationType) that the core multiplies as they are: bytes of a weight.
# From 200 on blocks of other files: NF4 and FP4 of bitsandbytes, integers of 2 and 3 bits (block_numbers.py).
BLOCK_TYPES = {
    **{2: 18 / 32, 3: 20 / 32, 6: 22 / 32, 7: 24 / 32, 8: 34 / 32},  # Q4_0, Q4_1, Q5_0, Q5_1, Q8_0
    **{10: 84 / 256, 11: 110 / 256, 12: 144 / 256, 13: 176 / 256, 14: 210 / 256},  # Q2_K, Q3_K, Q4_K, Q5_K, Q6_K
    **{16: 66 / 256, 17: 74 / 256, 18: 98 / 256, 19: 50 / 256},  # IQ2_XXS, IQ2_XS, IQ3_XXS, IQ1_S
    **{20: 18 / 32, 21: 110 / 256, 22: 82 / 256, 23: 136 / 256},  # IQ4_NL, IQ3_S, IQ2_S, IQ4_XS
    **{29: 56 / 256, 34: 54 / 256, 35: 66 / 256, 39: 17 / 32, 40: 36 / 64},  # IQ1_M, TQ1_0, TQ2_0, MXFP4, NVFP4
    **{200: 36 / 64, 201: 36 / 64},  # NF4, FP4
    **{202: 10 / 32, 203: 34 / 128, 204: 14 / 32, 205: 50 / 128},  # INT2_32, INT2_128, INT3_32, INT3_128
}
BLOCK_FORMAT = 64  # native/formats/precision.h: the number of such a type in the core is this + the type

LINEAR_BYTES = {name: each.weight_bytes for name, each in FORMATS.items()}
PRECISIONS = tuple(FORMATS)

# Precisions of keys and values that --kv-precision takes; by default they have the precision of attention.
KV_PRECISIONS = ("bf16", "int8")


def beside_experts(precision: str) -> str:
    """The precision of linears other than experts', and of what is not in blocks beside those that are.

    With mxfp4 it is bf16, as in checkpoints with such experts.
    """
    return "bf16" if FORMATS[precision].experts_only or precision == "stored" else precision


def float_head_precision(stored: str | None) -> str:
    """The precision of a head that is in floats, beside linears that are kept as `stored`: few, and int8 costs nothing.

    Beside FP8, which has fewer significant bits but whose rows are not quantized, it stays bf16.
    """
    return "bf16" if stored is not None and FORMATS[stored].row_bytes == 2 else "int8"


def kv_precision_of(precision: str | None, asked: str | None = None) -> str:
    """The precision of keys and values where linears have `precision`: as `asked`, or that of attention."""
    return asked or ("fp32" if precision == "fp32" else "bf16")


def kv_sizes(kv_precision: str) -> tuple[int, int]:
    """Bytes of an element of a key or value, and of the scale that a head's elements share (0: no scale)."""
    return {"fp32": (4, 0), "bf16": (2, 0), "int8": (1, 4)}[kv_precision]
