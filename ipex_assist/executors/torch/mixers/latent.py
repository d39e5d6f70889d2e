"""Attention over latents (DeepSeek's MLA) in its absorbed form: see LatentSpec."""

from __future__ import annotations

from dataclasses import replace

import torch

from ipex_assist.executors.torch.mixers.attention import attend
from ipex_assist.executors.torch.mixers.chosen_positions import chosen_mask
from ipex_assist.executors.torch.mixers.indexer import choose, grown, index_parts
from ipex_assist.executors.torch.mixers.layer_rows import LayerRows
from ipex_assist.executors.torch.rope import rotate


def mix_by_latents(x: torch.Tensor, rows: LayerRows) -> torch.Tensor:
    """Rows x (rows, hidden) → (rows, heads · value_dim)."""
    attention, layer, norm = rows.spec.layers[rows.index].attention, rows.weights.latent, rows.kernels.rms_norm
    spec, heads, metadata = attention.latent, attention.heads, rows.metadata
    assert spec is not None
    assert layer is not None
    inputs, inputs_of = rows.weights.qkv(x), x
    early = 0 if spec.reads_unnormed else attention.gate_size
    own = (0, 0) if attention.shares_kv else (spec.rope_dim, spec.rank)
    row, key, latent, gates = inputs.split((spec.query_rank or 0, *own, early), 1)
    projected = torch.cat((key, latent), 1)
    if layer.norm is not None:
        latent = norm(latent, layer.norm, spec.norm_eps)
    if layer.query_norm is not None:
        x = norm(row, layer.query_norm, spec.norm_eps)
    made = index_parts(inputs_of, x, rows)
    queries = layer.query(torch.cat((x, row), 1) if spec.reads_unnormed else x)
    # The core keeps room for absorbed queries before it.
    if inputs.shape[1]:
        rows.see("latent_linear", "qkv", projected, row, *made[:-1], gates, column=heads * attention.head_dim)
    sizes = heads * spec.nope_dim, heads * spec.rope_dim, attention.gate_size - early
    plain, rotated, late = queries.split(sizes, 1)
    apart = spec.indexer is not None and spec.indexer.reads_input
    rows.see("index_queries" if apart else "query_linear", "queries", plain, rotated, *made[-1:], late)
    gates = late if spec.reads_unnormed else gates
    absorbed = [run(part.contiguous()) for run, part in zip(layer.keys, plain.chunk(heads, 1), strict=True)]
    query = torch.cat((rotated.reshape(len(x), heads, spec.rope_dim), torch.stack(absorbed, 1)), -1)
    query = grown(query, rows.weights.growth, metadata.start)
    kept = torch.cat((key, latent), 1)[:, None]
    query_key = query if attention.shares_kv else torch.cat((query, kept), 1)
    if metadata.rotary is not None:
        query_key = rotate(query_key, *metadata.rotary)
    query, key = query_key.tensor_split((heads,), 1)
    if made:
        rows.cache.noted = choose(rows, *made)
    if spec.indexer is not None:
        assert rows.cache.noted is not None, "no layer has chosen"
        rows = replace(rows, metadata=replace(metadata, mask=chosen_mask(rows.cache.noted, rows)))
    attended = attend(query, key, latent[:, None], rows)
    rows.see("attention", "attended", attended)
    parts = zip(layer.values, attended.chunk(heads, 1), strict=True)
    values = torch.cat([run(part.contiguous()) for run, part in parts], 1)
    if attention.gate_per_head:
        gates = gates.repeat_interleave(spec.value_dim, 1)
    return values * torch.sigmoid(gates) if attention.output_gate else values
