"""Attention of a few rows, or of a prompt, over the cache."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention, softmax


def causal_mask(
    start: int, rows: int, length: int, window: int | None, dtype: torch.dtype, chunk: int | None = None
) -> torch.Tensor:
    """Return what to add to scores (rows, length): 0 where row start+i sees a position, else the lowest finite number.

    Finite, because a block of positions that are all masked with -inf would make a row's softmax 0 ÷ 0.
    """
    position = torch.arange(start, start + rows)[:, None]
    key = torch.arange(length)[None, :]
    hidden = key > position
    if window is not None:
        hidden |= key <= position - window
    if chunk is not None:
        hidden |= key < position - position % chunk
    return torch.zeros(rows, length, dtype=dtype).masked_fill_(hidden, torch.finfo(dtype).min)


def alibi_mask(mask: torch.Tensor, slopes: torch.Tensor, start: int, kv_heads: int, *, stacked: bool) -> torch.Tensor:
    """Return a causal mask (rows, length) with ALiBi's slopes (heads,) in it, in the shapes that attention takes.

    stacked: (1, kv_heads, rows · queries per head, length), else (kv_heads, queries per head, rows, length). Source:
    Press et al. 2021, arXiv:2108.12409.
    """
    rows, length = mask.shape
    distance = torch.arange(length)[None, :] - torch.arange(start, start + rows)[:, None]
    biased = mask + slopes.view(kv_heads, -1, 1, 1) * distance
    biased = biased.clamp_(min=torch.finfo(mask.dtype).min).to(mask.dtype)
    return biased.transpose(1, 2).reshape(1, kv_heads, -1, length) if stacked else biased


def attend_rows(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of a decode step: query (rows, heads, head_dim) → (rows, heads · value width).

    keys, values: (kv_heads, length, head_dim or value width). The queries that share a key/value head are stacked into
    one block, so that each key is read once for all of them; mask (1, 1 or kv_heads, rows · queries per head, length)
    is stacked alike. cap: scores x become cap · tanh(x / cap) before the mask. sinks: (heads,), a logit of each query
    head that takes part in the sum of its softmax. The mask is not None where there are sinks or a cap.
    """
    rows, heads, head_dim = query.shape
    kv_heads = keys.shape[0]
    stacked = query.view(rows, kv_heads, heads // kv_heads, head_dim).transpose(0, 1)
    stacked = stacked.reshape(1, kv_heads, rows * (heads // kv_heads), head_dim)
    if sinks is not None:
        sinks = sinks.view(1, kv_heads, 1, -1).expand(-1, -1, rows, -1).reshape(1, kv_heads, -1, 1)
    out = _attend(stacked, keys[None], values[None], mask, scale, cap, sinks)
    out = out.view(kv_heads, rows, heads // kv_heads, -1).transpose(0, 1)
    return out.reshape(rows, -1)


def attend_prompt(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of a stretch of a prompt: as `attend_rows`, mask (rows, length) or (kv_heads, group, rows, length), or
    None for plain causal.

    Queries that share a key/value head stand side by side as heads, over keys expanded without a copy.
    """
    rows, heads, head_dim = query.shape
    kv_heads = keys.shape[0]
    group = heads // kv_heads
    grouped = query.view(rows, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    keys, values = (t[:, None].expand(-1, group, -1, -1) for t in (keys, values))
    sinks = None if sinks is None else sinks.view(kv_heads, group, 1, 1).expand(-1, -1, rows, -1)
    out = _attend(grouped, keys, values, mask, scale, cap, sinks)
    return out.permute(2, 0, 1, 3).reshape(rows, -1)


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    cap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    if cap is None and sinks is None:
        return scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale)
    assert mask is not None, "scores with a soft cap or a sink are masked"
    scores = query @ keys.transpose(-1, -2)
    scores = (scores * scale if cap is None else torch.tanh(scores * (scale / cap)) * cap) + mask
    if sinks is None:
        return softmax(scores, -1, dtype=torch.float32).to(query.dtype) @ values
    # The sink is one more score, whose value is nothing.
    shares = softmax(torch.cat((scores, sinks.to(scores.dtype)), -1), -1, dtype=torch.float32)[..., :-1]
    return shares.to(query.dtype) @ values
