"""Which positions rows attend to where means of keys are what they choose by (QSA): see IndexerSpec.means."""

from __future__ import annotations

import torch
from torch.nn import functional

from ipex_assist.executors.torch.mixers.chosen_positions import best_positions
from ipex_assist.executors.torch.mixers.layer_rows import LayerRows
from ipex_assist.executors.torch.rope import rotate
from ipex_assist.models.attention_spec import AttentionSpec


def choose_by_means(spec: AttentionSpec, rows: LayerRows, queries: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Keep the rows' keys (rows, dim); which positions each of them attends to: (rows, positions).

    queries: (rows, heads · dim). Scores are in fp64, so that the order of sums decides nothing.
    """
    index, metadata, norm = spec.indexer, rows.metadata, rows.kernels.rms_norm
    assert index is not None
    start, count = metadata.start, len(key)
    of_queries, of_keys = (rows.weights.vectors[f"index_{part}_norm.weight"] for part in ("q", "k"))
    rows.cache.write_beside(rows.index, start, key)
    kept = rows.cache.read_beside(rows.index, start + count)
    pools = len(kept) // index.pool
    means = kept[: pools * index.pool].double().unflatten(0, (pools, index.pool)).mean(1).to(key.dtype)
    keys = norm(means[:, None].contiguous(), of_keys, index.norm_eps)
    heads = norm(queries.unflatten(1, (index.heads, index.dim)).contiguous(), of_queries, index.norm_eps)
    if metadata.rotary is not None and metadata.entry_rotary is not None:
        heads = rotate(heads, *metadata.rotary)
        keys = rotate(keys, *(table[:pools] for table in metadata.entry_rotary))
    products = functional.relu(heads.double() @ keys[:, 0].double().T)  # (rows, heads, pools)
    scores = products.sum(1) * index.dim**-0.5
    return best_positions(scores.float(), start, index.pool, index.top_k)
