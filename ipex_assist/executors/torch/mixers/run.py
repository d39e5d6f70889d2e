"""Runs the mixer of a layer: attention over keys and values or latents, or a recurrence."""

from __future__ import annotations

import torch

from ipex_assist.executors.torch.mixers.attention import mix_by_attention
from ipex_assist.executors.torch.mixers.compressed import mix_by_entries
from ipex_assist.executors.torch.mixers.latent import mix_by_latents
from ipex_assist.executors.torch.mixers.layer_rows import LayerRows
from ipex_assist.executors.torch.mixers.ngrams import mix_by_ngrams
from ipex_assist.executors.torch.mixers.recurrent import mix_by_recurrence
from ipex_assist.models.compressed_spec import CompressedSpec


def run_mixer(x: torch.Tensor, rows: LayerRows) -> torch.Tensor:
    """Rows x (rows, hidden) through a layer's mixer and its output linear, if it has one."""
    spec = rows.spec.layers[rows.index]
    if spec.reads_streams:
        return mix_by_ngrams(x, rows)
    if spec.recurrent is not None:
        mixed = mix_by_recurrence(x, rows)
        rows.see("gate_scanned" if spec.recurrent.scans else "short_conv", "attended", mixed)
    elif isinstance(spec.attention.latent, CompressedSpec):
        mixed = mix_by_entries(x, rows)
        rows.see("expand_values", "values", mixed)
    elif spec.attention.latent is not None:
        mixed = mix_by_latents(x, rows)
        rows.see("expand_values", "values", mixed)
    else:
        mixed = mix_by_attention(x, rows)
        rows.see("attention", "attended", mixed)
    made = rows.weights.o_proj(mixed)
    rows.see("output_linear", "delta", made)
    return made
