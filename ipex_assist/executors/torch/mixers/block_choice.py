"""Which blocks rows attend to where they choose them: see BlockChoiceSpec."""

from __future__ import annotations

import torch
from torch.nn import functional

from ipex_assist.executors.torch.attention import causal_mask
from ipex_assist.executors.torch.mixers.layer_rows import LayerRows
from ipex_assist.executors.torch.rope import rotate
from ipex_assist.models.attention_spec import AttentionSpec


def choice_mask(spec: AttentionSpec, rows: LayerRows, queries: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Keep the rows' keys (rows, dim); the mask of attention without what is not in a chosen block.

    queries: (rows, kv_heads · dim). Scores are in fp64, so that the order of sums decides nothing.
    """
    choice, metadata = spec.choice, rows.metadata
    assert choice is not None
    start, count = metadata.start, len(key)
    norms = [rows.weights.vectors[f"index_{part}_norm.weight"] for part in ("q", "k")]
    eps = rows.spec.norm_eps
    parts = queries.view(count, -1, choice.dim), key[:, None]
    both = torch.cat(
        [rows.kernels.rms_norm(part.contiguous(), norm, eps) for part, norm in zip(parts, norms, strict=True)], 1
    )
    if metadata.rotary is not None:
        both = rotate(both, *metadata.rotary)
    rows.cache.write_beside(rows.index, start, both[:, -1])
    keys = rows.cache.read_beside(rows.index, start + count).double()
    scores = (both[:, :-1].double() @ keys.T).transpose(0, 1)  # (kv_heads, rows, positions)
    seen = torch.arange(start, start + count)[:, None]
    scores = scores.masked_fill(torch.arange(start + count) > seen, -torch.inf)
    blocks = -(-(start + count) // choice.size)
    padded = functional.pad(scores, (0, blocks * choice.size - scores.shape[-1]), value=-torch.inf)
    highest, number = padded.unflatten(-1, (blocks, -1)).amax(-1), torch.arange(blocks)
    own = seen // choice.size
    highest = highest.masked_fill((number <= own) & (number > own - choice.local), torch.inf)
    # Of equal scores the lower blocks are before the others.
    order = highest.sort(dim=-1, descending=True, stable=True).indices[..., : choice.blocks]
    chosen = torch.zeros_like(highest, dtype=torch.bool).scatter_(-1, order, True)
    visible = chosen.repeat_interleave(choice.size, -1)[..., : start + count]
    mask = metadata.mask
    if mask is None:
        mask = causal_mask(start, count, start + count, None, rows.kernels.dtype)
    hidden = functional.pad(~visible, (0, mask.shape[-1] - visible.shape[-1]), value=True)
    # (1, kv_heads, rows · group, length), or (kv_heads, 1, rows, length) for all queries of a group.
    hidden = hidden.repeat_interleave(spec.group, 1)[None] if metadata.step else hidden[:, None]
    return mask.masked_fill(hidden, torch.finfo(mask.dtype).min)
