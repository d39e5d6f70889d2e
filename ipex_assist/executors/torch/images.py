"""Rows of images among those of a pass."""

from __future__ import annotations

import torch

from ipex_assist.executors.image_rows import PromptImages


def with_images(x: torch.Tensor, images: PromptImages | None, start: int, count: int, layer: int) -> torch.Tensor:
    """What enters a layer: x (rows, hidden) of tokens from position `start` on, `count` of them no padding, and images.

    An image's rows enter the first layer in the place of tokens'; before the next ones is added what it has for them.
    """
    for image in images.within(start, start + count) if images is not None else ():
        first, last = max(start, image.first), min(start + count, image.end)
        parts = image.rows[first - image.first : last - image.first].reshape(last - first, -1, x.shape[-1])
        if layer < parts.shape[1]:
            given = torch.tensor(parts[:, layer]).to(x.dtype)
            x = x.clone()
            x[first - start : last - start] = given + (x[first - start : last - start] if layer else 0)
    return x
