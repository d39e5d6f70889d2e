"""The precisions of linear layers: their names, bytes a weight, and the groups of int4."""

from __future__ import annotations

# Input columns that share an int4 scale and zero. A target's quality is its users'; what a draft gets wrong costs time
# only, and its passes are shorter by 6 % so.
INT4_GROUP = 64
DRAFT_INT4_GROUP = 128

# Bytes per weight of a linear layer: int8 has an fp32 scale per output row (counted as nothing), int4 one bf16 scale
# and one bf16 zero point per group. Embeddings and norms are not quantized.
LINEAR_BYTES = {"bf16": 2.0, "fp32": 4.0, "int8": 1.0, "int4": 0.5 + 4 / INT4_GROUP}
PRECISIONS = tuple(LINEAR_BYTES)
