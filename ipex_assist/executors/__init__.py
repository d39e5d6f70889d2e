"""Executors run a DecoderSpec: torch (the reference, anywhere) and ipex (IPEX's kernels)."""

# Input columns that share an int4 scale and zero. A target's quality is its users'; what a draft gets wrong costs time
# only, and its passes are shorter by 6 % so.
INT4_GROUP = 64
DRAFT_INT4_GROUP = 128
