"""The table of embeddings of n-grams, which checkpoints have in parts."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ipex_assist.models.recurrent_spec import NGRAM_TABLE


def ngram_table(tensors: Mapping[str, torch.Tensor], prefix: str) -> torch.Tensor:
    """All parts of a layer's table; its weights' names begin with `prefix`. (rows, columns of a hash)."""
    place = f"{prefix}{NGRAM_TABLE}."
    parts = {int(name.split(".")[-3]): part for name, part in tensors.items() if name.startswith(place)}
    return torch.cat([parts[number] for number in sorted(parts)])
