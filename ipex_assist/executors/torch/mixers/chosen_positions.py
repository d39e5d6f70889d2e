"""Positions, or pools of them, with the best scores, and what rows see that attend to these."""

from __future__ import annotations

import torch
from torch.nn import functional

from ipex_assist.executors.torch.mixers.layer_rows import LayerRows


def best_positions(scores: torch.Tensor, start: int, pool: int, top_k: int) -> torch.Tensor:
    """Which positions rows from `start` on attend to, by scores of whole pools (rows, pools): (rows, positions).

    `top_k` positions at most, in pools that end with the row's at the latest; and those of the pool that is open.
    """
    count = len(scores)
    seen = torch.arange(start + 1, start + count + 1)[:, None]
    after = torch.arange(scores.shape[1]) >= seen // pool
    # Of equal scores the lower positions are before the others.
    order = scores.masked_fill(after, -torch.inf).sort(dim=1, descending=True, stable=True).indices
    chosen = torch.zeros_like(after).scatter_(1, order[:, : top_k // pool], True) & ~after
    positions = torch.arange(start + count)
    of_pools = functional.pad(chosen.repeat_interleave(pool, 1), (0, len(positions) - pool * scores.shape[1]))
    return of_pools | ((positions >= seen // pool * pool) & (positions < seen))


def chosen_mask(chosen: torch.Tensor, rows: LayerRows) -> torch.Tensor:
    """The mask of attention (`attention_mask`) of one KV head, without what was not chosen."""
    mask, group = rows.metadata.mask, rows.spec.layers[rows.index].attention.group
    if mask is None:
        mask = torch.zeros(chosen.shape, dtype=rows.kernels.dtype)
    hidden = functional.pad(~chosen, (0, mask.shape[-1] - chosen.shape[1]), value=True)
    if rows.metadata.step:
        hidden = hidden.repeat_interleave(group, 0)[None, None]
    return mask.masked_fill(hidden, torch.finfo(mask.dtype).min)
