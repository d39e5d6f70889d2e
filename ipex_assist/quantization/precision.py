"""The precisions of linear layers, and of keys and values: their names, their bytes, and the groups of int4."""

from __future__ import annotations

# Input columns that share an int4 scale and zero. A target's quality is its users'; what a draft gets wrong costs time
# only, and its passes are shorter by 6 % so.
INT4_GROUP = 64
DRAFT_INT4_GROUP = 128

# Bytes per weight of a linear layer: int8 has an fp32 scale per output row (counted as nothing), int4 one bf16 scale
# and one bf16 zero point per group. mxfp4 is of experts, as a checkpoint stores them, with a byte for 32 weights: their
# router and what is beside them are bf16. Embeddings and norms are not quantized.
LINEAR_BYTES = {"bf16": 2.0, "fp32": 4.0, "int8": 1.0, "int4": 0.5 + 4 / INT4_GROUP, "mxfp4": 0.5 + 1 / 32}
PRECISIONS = tuple(LINEAR_BYTES)

# Of keys and values: what may be asked for. Else they have the precision that attention computes in.
KV_PRECISIONS = ("bf16", "int8")


def kv_precision_of(precision: str | None, asked: str | None = None) -> str:
    """The precision of keys and values where linears have `precision`: what was asked for, or that of attention."""
    return asked or ("fp32" if precision == "fp32" else "bf16")


def kv_sizes(kv_precision: str) -> tuple[int, int]:
    """Bytes of a key's or value's element, and of the scale that those of a head share."""
    return {"fp32": (4, 0), "bf16": (2, 0), "int8": (1, 4)}[kv_precision]
