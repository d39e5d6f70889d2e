"""Attention over keys and values of heads: projections, norms, rotation, the cache, and an output gate."""

from __future__ import annotations

from dataclasses import replace

import torch

from ipex_assist.executors.torch.attention import alibi_mask, attend_prompt, attend_rows, causal_mask
from ipex_assist.executors.torch.kernels import Kernels, norm_heads
from ipex_assist.executors.torch.mixers.block_choice import choice_mask
from ipex_assist.executors.torch.mixers.chosen_positions import chosen_mask
from ipex_assist.executors.torch.mixers.key_means import choose_by_means
from ipex_assist.executors.torch.mixers.layer_rows import LayerRows
from ipex_assist.executors.torch.rope import rotate
from ipex_assist.models.attention_spec import AttentionSpec
from ipex_assist.models.spec import DecoderSpec


def mix_by_attention(x: torch.Tensor, rows: LayerRows) -> torch.Tensor:
    """Rows x (rows, hidden) → (rows, heads · value width)."""
    spec, layer, metadata = rows.spec.layers[rows.index].attention, rows.weights, rows.metadata
    heads, kv_heads = spec.heads, 0 if spec.shares_kv else spec.kv_heads
    projected = layer.qkv(x)
    projected, *index = projected.split(_widths(projected, spec), 1)
    projected, gate = projected.tensor_split((projected.shape[1] - spec.gate_size,), 1)
    projected, value = projected.tensor_split((spec.query_size + kv_heads * spec.head_dim,), 1)
    query_key = projected.unflatten(1, (-1, spec.head_dim))
    value = value.unflatten(1, (-1, spec.value_width)) if value.shape[1] else value[..., None]
    query, key = query_key.split((heads, kv_heads), 1)
    rows.see("qkv_linear", "qkv", *(part.flatten(1) for part in (query, key, value)), gate, *index)
    value = normed_values(query_key[:, heads:] if spec.values_are_keys else value, spec, rows.kernels, rows.spec)
    if not spec.norm_after_rope:
        query_key = _norm_of_heads(query_key, spec, rows)
    if metadata.rotary is not None:
        query_key = rotate(query_key, *metadata.rotary)
    if spec.norm_after_rope:
        query_key = _norm_of_heads(query_key, spec, rows)
    query, key = query_key.split((heads, kv_heads), 1)
    if spec.indexer is not None:
        mask = chosen_mask(choose_by_means(spec, rows, *index), rows)
        rows = replace(rows, metadata=replace(metadata, mask=mask))
    if spec.choice is not None:
        rows = replace(rows, metadata=replace(metadata, mask=choice_mask(spec, rows, *index)))
    attended = attend(query, key, value, rows)
    attended = attended if spec.value_scale is None else attended * spec.value_scale
    return gated(attended, gate, spec) if spec.output_gate else attended


def _widths(projected: torch.Tensor, spec: AttentionSpec) -> list[int]:
    """Of what is there without a choice of blocks, and of its queries and keys."""
    index = [] if not spec.index_kept else [spec.chooses_by * spec.index_kept, spec.index_kept]
    return [projected.shape[1] - sum(index), *index]


def gated(attended: torch.Tensor, gate: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
    """Attended values (rows, heads · value_width) times what their gates (rows, gate_size) say."""
    if spec.gate_activation == "sigmoid":
        gate = torch.sigmoid(gate)
    else:
        gate = torch.nn.functional.softplus(gate.float()).to(attended.dtype)
    return attended * (gate.repeat_interleave(spec.value_width, 1) if spec.gate_per_head else gate)


def normed_values(value: torch.Tensor, spec: AttentionSpec, kernels: Kernels, model: DecoderSpec) -> torch.Tensor:
    """Values (rows, kv_heads, value_width) through the norm without weights that they have, if any."""
    if not spec.value_norm:
        return value
    return kernels.rms_norm(value.contiguous(), torch.ones(spec.value_width, dtype=kernels.dtype), model.norm_eps)


def _norm_of_heads(query_key: torch.Tensor, spec: AttentionSpec, rows: LayerRows) -> torch.Tensor:
    """Queries and keys (rows, heads, head_dim) through the norms that they have, if any."""
    if spec.qk_norm is None:
        return query_key
    layer, kernels, eps = rows.weights, rows.kernels, rows.spec.norm_eps
    query, key = query_key.tensor_split((spec.heads,), 1)
    query = norm_heads(kernels, spec.qk_norm, query, layer.q_norm, eps)
    if spec.shares_kv:  # the keys of another layer
        return query
    return torch.cat((query, norm_heads(kernels, spec.qk_norm, key, layer.k_norm, eps)), 1)


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: LayerRows) -> torch.Tensor:
    """Keep keys and values (rows, kv_heads, …), and attend with queries (rows, heads, head_dim).

    A layer that reads another one's keeps none.
    """
    spec, metadata = rows.spec.layers[rows.index].attention, rows.metadata
    if metadata.growth is not None:
        query = query * metadata.growth.to(query.dtype)
    if spec.kv_layer is None:
        rows.cache.write(rows.index, metadata.start, key, value)
    length = metadata.start + query.shape[0] if metadata.mask is None else metadata.mask.shape[-1]
    run = attend_rows if metadata.step else attend_prompt
    keys, values = rows.cache.read(rows.index if spec.kv_layer is None else spec.kv_layer, length)
    return run(query, keys, values, metadata.mask, spec.score_scale, spec.cap, rows.weights.sinks)


def attention_mask(
    attention: AttentionSpec, start: int, rows: int, length: int, dtype: torch.dtype, step: bool
) -> torch.Tensor | None:
    """What `rows` rows from `start` on may see of `length` positions; None where the operator masks by itself."""
    slopes, seen = attention.alibi_slopes, min(attention.window or rows, attention.chunk or rows)
    plain = not slopes and attention.cap is None and not attention.sinks
    if plain and not step and start == 0 and rows <= seen:
        return None  # causal from the first position on
    mask = causal_mask(start, rows, length, attention.window, dtype, attention.chunk)
    if slopes:
        return alibi_mask(mask, torch.tensor(slopes), start, attention.kv_heads, stacked=step)
    if step:
        mask = mask.repeat_interleave(attention.group, 0)[None, None]
    return mask


def query_growth(attention: AttentionSpec, start: int, rows: int) -> torch.Tensor | None:
    """What the queries of `rows` rows from position `start` on are multiplied with (AttentionSpec.growth)."""
    first = start + attention.growth_shift
    if attention.growth == 0 or attention.growth_step is None or first + rows <= attention.growth_step:
        return None
    steps = torch.arange(first, first + rows) // attention.growth_step
    return (1 + attention.growth * torch.log1p(steps.double())).float()[:, None, None]
