"""Which positions rows attend to where an indexer chooses them: see IndexerSpec."""

from __future__ import annotations

import torch
from torch.nn import functional

from ipex_assist.executors.torch.mixers.chosen_positions import best_positions
from ipex_assist.executors.torch.mixers.layer_rows import LayerRows
from ipex_assist.executors.torch.rope import rotate
from ipex_assist.executors.torch.weights import LogGrowth


def index_parts(x: torch.Tensor, row: torch.Tensor, rows: LayerRows) -> tuple[torch.Tensor, ...]:
    """Key, gates of pools and weights of rows x (rows, hidden), and queries of the rows that theirs are made of."""
    latent, spec = rows.weights.latent, rows.spec.layers[rows.index].attention.latent
    if latent is None or latent.indexer is None or spec is None or spec.indexer is None:
        return ()
    sizes = (spec.indexer.dim, spec.indexer.kept - spec.indexer.dim, spec.indexer.heads)
    if latent.indexer.query_norm is not None:
        row = functional.layer_norm(x, (x.shape[1],), *latent.indexer.query_norm, spec.indexer.norm_eps)
    return *latent.indexer.inputs(x).split(sizes, 1), latent.indexer.query(row)


def grown(queries: torch.Tensor, growth: LogGrowth | None, start: int) -> torch.Tensor:
    """Queries (rows, heads, dim) from position `start` on, times what theirs says (AttentionSpec.log_growth)."""
    if growth is None:
        return queries
    positions = torch.arange(start + 1, start + 1 + len(queries)).float().log()[:, None]
    return queries * (growth[0] * positions + growth[1])[..., None].to(queries.dtype)


def choose(
    rows: LayerRows, key: torch.Tensor, gates: torch.Tensor, weights: torch.Tensor, queries: torch.Tensor
) -> torch.Tensor:
    """Keep the rows' keys and gates; which positions each of them attends to: (rows, positions).

    In fp64, so that the order of sums, which depends on the number of rows, decides nothing.
    """
    latent, spec = rows.weights.latent, rows.spec.layers[rows.index].attention.latent
    assert latent is not None
    assert latent.indexer is not None
    assert spec is not None
    assert spec.indexer is not None
    start, count = rows.metadata.start, len(key)
    key = functional.layer_norm(key, (spec.indexer.dim,), *latent.indexer.norm, spec.indexer.norm_eps)
    queries = grown(queries.view(count, -1, spec.indexer.dim), latent.indexer.growth, start)
    both = torch.cat((queries, key[:, None]), 1)
    if rows.metadata.rotary is not None:
        both = rotate(both, *rows.metadata.rotary)
    rows.cache.write_beside(rows.index, start, torch.cat((both[:, -1], gates), 1))
    pool, keys = spec.indexer.pool, rows.cache.read_beside(rows.index, start + count).double()
    if latent.indexer.places is not None:
        keys = _pooled(keys, latent.indexer.places.view(pool, -1).double())
    products = functional.relu(both[:, :-1].double() @ keys.T)  # (rows, heads, positions or pools)
    scores = (weights.double()[..., None] * products).sum(1).float()
    return best_positions(scores, start, pool, spec.indexer.top_k)


def _pooled(rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Keys of whole pools, of keys and gates of positions (positions, 2 · dim). places: (pool, dim)."""
    pool, dim = places.shape
    keys, gates = rows[: len(rows) // pool * pool].view(-1, pool, 2 * dim).split(dim, 2)
    return (torch.softmax(gates + places, 1) * keys).sum(1)
