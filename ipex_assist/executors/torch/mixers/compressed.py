"""Attention over a window of keys, which are values, and entries of several tokens each: see CompressedSpec.

Softmaxes are in fp64, so that the order of their sums, which depends on the number of rows, decides nothing. Entries
are made again in each pass, of what is kept of all positions.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from ipex_assist.executors.torch.compressed_layer import EntryLayer
from ipex_assist.executors.torch.mixers.layer_rows import LayerRows
from ipex_assist.executors.torch.rope import rotate
from ipex_assist.models.compressed_spec import CompressedSpec


def mix_by_entries(x: torch.Tensor, rows: LayerRows) -> torch.Tensor:
    """Rows x (rows, hidden) → (rows, groups · value_dim)."""
    attention, layer, kernels = rows.spec.layers[rows.index].attention, rows.weights.compressed, rows.kernels
    spec, metadata = attention.latent, rows.metadata
    assert isinstance(spec, CompressedSpec)
    assert layer is not None
    assert spec.query_rank is not None
    row, key = rows.weights.qkv(x).split((spec.query_rank, spec.rank), 1)
    made = [each.inputs(x) for each in (layer.entries, layer.index) if each is not None]
    weights = () if layer.index_weights is None else (layer.index_weights(x),)
    normed = kernels.rms_norm(row, layer.query_norm, spec.norm_eps)
    key = kernels.rms_norm(key, layer.norm, spec.norm_eps)
    queries = layer.query(normed)
    index_queries = () if layer.index_query is None else (layer.index_query(normed),)
    rows.see("query_linear", "queries", queries, *index_queries)
    heads = queries.unflatten(1, (attention.heads, spec.rank)).contiguous()
    heads = kernels.rms_norm(heads, torch.ones(spec.rank, dtype=heads.dtype), rows.spec.norm_eps)
    query, key = _rotated(torch.cat((heads, key[:, None]), 1), metadata.rotary).split((attention.heads, 1), 1)
    rows.cache.write(rows.index, metadata.start, key, key)
    if made:
        rows.cache.write_beside(rows.index, metadata.start, torch.cat(made, 1))
    attended = _attend(rows, spec, query, *weights, *index_queries)
    attended = _turned_back(attended, spec, metadata.rotary)
    rows.see("attention", "attended", attended)
    parts = zip(layer.groups, attended.chunk(spec.groups, 1), strict=True)
    return torch.cat([run(part.contiguous()) for run, part in parts], 1)


def append_keys(x: torch.Tensor, rows: LayerRows) -> None:
    """Keep the keys of rows x (rows, hidden), which attend to nothing."""
    spec, layer = rows.spec.layers[rows.index].attention.latent, rows.weights.compressed
    assert isinstance(spec, CompressedSpec)
    assert layer is not None
    key = rows.kernels.rms_norm(rows.weights.qkv(x)[:, spec.query_rank :].contiguous(), layer.norm, spec.norm_eps)
    key = _rotated(key[:, None], rows.metadata.rotary)
    rows.cache.write(rows.index, rows.metadata.start, key, key)


def _attend(rows: LayerRows, spec: CompressedSpec, query: torch.Tensor, *index: torch.Tensor) -> torch.Tensor:
    """Of queries (rows, heads, rank): (rows, heads, rank). index: weights of an indexer's heads and their queries."""
    attention, layer, start = rows.spec.layers[rows.index].attention, rows.weights.compressed, rows.metadata.start
    assert layer is not None
    position = torch.arange(start, start + len(query))[:, None]
    length = start + len(query)
    keys, values = (part[0] for part in rows.cache.read(rows.index, length))
    at = torch.arange(length)
    seen, first = at <= position, position
    if rows.metadata.block:
        seen, first = torch.ones_like(seen), torch.full_like(position, start)
    if attention.window is not None:
        seen &= at > first - attention.window
    if layer.entries is not None:
        kept = rows.cache.read_beside(rows.index, length)
        entries = _entries(rows, spec, layer.entries, kept[:, : kept.shape[1] - 2 * spec.parts * spec.index_dim])
        visible = torch.arange(len(entries)) < (position + 1) // spec.rate
        if layer.index is not None:
            of_index = kept[:, kept.shape[1] - 2 * spec.parts * spec.index_dim :]
            visible &= _chosen(rows, spec, _entries(rows, spec, layer.index, of_index), visible, *index)
        keys, values = torch.cat((keys, entries)), torch.cat((values, entries))
        seen = torch.cat((seen, visible), 1)
    scores = query.double() @ keys.double().T * attention.score_scale
    scores = scores.masked_fill(~seen[:, None], -torch.inf)
    if rows.weights.sinks is not None:  # one more score, whose value is nothing
        scores = torch.cat((scores, rows.weights.sinks.double()[None, :, None].expand(len(query), -1, -1)), -1)
    shares = torch.softmax(scores, -1)[..., : len(keys)]
    return (shares @ values.double()).to(query.dtype)


def _entries(rows: LayerRows, spec: CompressedSpec, layer: EntryLayer, kept: torch.Tensor) -> torch.Tensor:
    """Of what is kept of positions (positions, 2 · parts · width), all whole windows' entries (windows, width)."""
    windows = len(kept) // spec.rate
    kv, gates = kept[: windows * spec.rate].double().unflatten(0, (windows, spec.rate)).chunk(2, -1)
    gates = gates + layer.bias.view(spec.rate, -1).double()
    if spec.overlap:
        width = kv.shape[-1] // 2
        kv, gates = (_both_halves(part, width, empty) for part, empty in ((kv, 0.0), (gates, -torch.inf)))
    made = (kv * torch.softmax(gates, 1)).sum(1).to(rows.kernels.dtype)
    made = rows.kernels.rms_norm(made, layer.norm, spec.norm_eps)
    if rows.metadata.entry_rotary is None:
        return made
    cos, sin = (table[:windows] for table in rows.metadata.entry_rotary)
    return _rotated(made[:, None], (cos, sin))[:, 0]


def _both_halves(x: torch.Tensor, width: int, empty: float) -> torch.Tensor:
    """The first half of each window before, then the second of its own: (windows, 2 · rate, width)."""
    before = torch.cat((torch.full_like(x[:1, :, :width], empty), x[:-1, :, :width]))
    return torch.cat((before, x[:, :, width:]), 1)


def _chosen(
    rows: LayerRows,
    spec: CompressedSpec,
    keys: torch.Tensor,
    visible: torch.Tensor,
    weights: torch.Tensor,
    queries: torch.Tensor,
) -> torch.Tensor:
    """Which of the visible entries (rows, entries) have the highest scores; of equal ones the lower."""
    assert spec.indexer is not None
    heads = _rotated(queries.unflatten(1, (-1, spec.indexer.dim)), rows.metadata.rotary)
    products = functional.relu(heads.double() @ keys.double().T)
    scores = (weights.double()[..., None] * products).sum(1).float().masked_fill(~visible, -torch.inf)
    order = scores.sort(dim=1, descending=True, stable=True).indices
    return torch.zeros_like(visible).scatter_(1, order[:, : spec.indexer.top_k], True)


def _rotated(x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor] | None) -> torch.Tensor:
    return x if rotary is None else rotate(x, *rotary)


def _turned_back(
    x: torch.Tensor, spec: CompressedSpec, rotary: tuple[torch.Tensor, torch.Tensor] | None
) -> torch.Tensor:
    """What heads attended to (rows, heads, rank), rotated back, in the order in which a checkpoint has a head's values:
    first those that are not rotated, then pairs. (rows, heads · rank).
    """
    if rotary is not None:
        cos, sin = rotary
        x = rotate(x, cos, -sin)
    halves, others = x.split((spec.rope_dim, spec.rank - spec.rope_dim), -1)
    pairs = torch.stack(halves.chunk(2, -1), -1).flatten(-2)
    return torch.cat((others, pairs), -1).flatten(1)
