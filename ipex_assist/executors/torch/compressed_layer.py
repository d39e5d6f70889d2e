"""What attention over keys that are values, and entries, has of weights: see CompressedSpec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ipex_assist.executors.torch.kernels import Linear


@dataclass
class EntryLayer:
    """What makes entries of several tokens."""

    inputs: Linear  # (rows, hidden) → kv and gates
    bias: torch.Tensor  # (rate, parts · width), of gates
    norm: torch.Tensor


@dataclass
class CompressedLayer:
    """Attention over keys that are values, and entries, between `qkv`, which makes the query's row and the key, and
    `o_proj`.
    """

    query: Linear
    groups: Sequence[Linear]  # of each: (rows, heads · rank of a group) → (rows, value_dim)
    norm: torch.Tensor  # of the key
    query_norm: torch.Tensor
    entries: EntryLayer | None = None
    index: EntryLayer | None = None
    index_query: Linear | None = None
    index_weights: Linear | None = None


def compressed_layer(
    prefix: str,
    linears: Mapping[str, Linear],
    by_head: Mapping[str, Sequence[Linear]],
    tensors: Mapping[str, torch.Tensor],
) -> CompressedLayer | None:
    """Of the layer whose weights' names begin with `prefix`; None where it is none."""
    if prefix + "o_a" not in by_head:
        return None

    def entries(inputs: str, bias: str, norm: str) -> EntryLayer | None:
        if prefix + inputs not in linears:
            return None
        return EntryLayer(linears[prefix + inputs], *(tensors[f"{prefix}{name}.weight"] for name in (bias, norm)))

    return CompressedLayer(
        query=linears[prefix + "query"],
        groups=by_head[prefix + "o_a"],
        norm=tensors[prefix + "kv_a_norm.weight"],
        query_norm=tensors[prefix + "q_a_norm.weight"],
        entries=entries("entry_in", "entry_bias", "entry_norm"),
        index=entries("index_entry_in", "index_bias", "index_k_norm"),
        index_query=linears.get(prefix + "index_q"),
        index_weights=linears.get(prefix + "index_in"),
    )
