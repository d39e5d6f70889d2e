"""The precisions of linears, and of keys and values: names, bytes, and the group sizes of int4."""

from __future__ import annotations

from typing import Literal

Precision = Literal["bf16", "fp32", "int8", "int4", "fp8", "mxfp4"]
KvPrecision = Literal["bf16", "int8"]

# Input columns that share an int4 scale and zero point. Draft models have larger groups: that makes their passes 6 %
# shorter, and an error in a draft costs time only, never quality.
INT4_GROUP = 64
DRAFT_INT4_GROUP = 128

# Bytes of a weight of a linear: int8 has an fp32 scale for each output row (too small to count), int4 a bf16 scale and
# a bf16 zero point for each group, fp8 an fp32 scale for 128 inputs of 16 outputs. mxfp4 is for experts as a checkpoint
# stores them, with a scale byte for 32 weights; the router and all other linears are bf16 then. Embeddings and norms
# are not quantized.
LINEAR_BYTES = {
    **{"bf16": 2.0, "fp32": 4.0, "int8": 1.0, "int4": 0.5 + 4 / INT4_GROUP},
    **{"fp8": 1 + 4 / 2048, "mxfp4": 0.5 + 1 / 32},
}
PRECISIONS = tuple(LINEAR_BYTES)

# Precisions of keys and values that --kv-precision takes; by default they have the precision of attention.
KV_PRECISIONS = ("bf16", "int8")


def beside_experts(precision: str) -> str:
    """The precision of linears other than experts'. With mxfp4 it is bf16, as in checkpoints with such experts."""
    return "bf16" if precision == "mxfp4" else precision


def float_head_precision(stored: str | None) -> str:
    """The precision of a head that is in floats, beside linears that are kept as `stored`: few, and int8 costs nothing.

    Beside FP8, which has fewer significant bits but whose rows are not quantized, it stays bf16.
    """
    return "bf16" if stored == "fp8" else "int8"


def kv_precision_of(precision: str | None, asked: str | None = None) -> str:
    """The precision of keys and values where linears have `precision`: as `asked`, or that of attention."""
    return asked or ("fp32" if precision == "fp32" else "bf16")


def kv_sizes(kv_precision: str) -> tuple[int, int]:
    """Bytes of an element of a key or value, and of the scale that a head's elements share (0: no scale)."""
    return {"fp32": (4, 0), "bf16": (2, 0), "int8": (1, 4)}[kv_precision]
