"""What residual streams get of n-grams of tokens: see NgramSpec."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch.nn import functional

from ipex_assist.executors.torch.mixers.layer_rows import LayerRows
from ipex_assist.executors.torch.mixers.recurrent import run_recurrent
from ipex_assist.models.ngram_spec import NgramSpec


def mix_by_ngrams(x: torch.Tensor, rows: LayerRows) -> torch.Tensor:
    """Streams x (rows, count · hidden) → what is added to them."""
    spec, layer, norms = rows.spec.layers[rows.index].recurrent, rows.weights, rows.weights.vectors
    assert spec is not None
    assert spec.hashes is not None
    assert layer.ngram_table is not None
    assert rows.states is not None
    assert rows.tokens is not None
    state, start = rows.states.layers[rows.index], rows.metadata.start
    known = {state.first + i: int(row[-1]) for i, row in enumerate(state.inputs)}
    known |= {start + i: token for i, token in enumerate(rows.tokens.tolist())}
    numbers = torch.tensor([_rows_of(spec.hashes, known, start + i) for i in range(len(x))])
    made = layer.qkv(functional.embedding(numbers, layer.ngram_table).flatten(1))
    key, value = made.split(list(spec.input_parts.values()), 1)

    def normed(part: torch.Tensor, name: str) -> torch.Tensor:
        weights = norms[f"ngram_{name}_norm.weight"].to(part.dtype).split(spec.value_dim)
        parts = zip(part.split(spec.value_dim, 1), weights, strict=True)
        done = [rows.kernels.rms_norm(each.contiguous(), weight, rows.spec.norm_eps) for each, weight in parts]
        return torch.stack(done, 1)

    products = (normed(key, "key").float() * normed(x, "query").float()).sum(-1, keepdim=True)
    logits = products / math.sqrt(spec.value_dim)
    gates = torch.sigmoid(logits.abs().clamp_min(1e-6).sqrt() * logits.sign())
    gated = (gates * value.float()[:, None]).to(x.dtype).flatten(1)
    inputs = torch.cat((normed(gated, "conv").flatten(1).float(), rows.tokens.float()[:, None]), 1)
    convolved = run_recurrent(spec, layer.vectors, rows.spec.norm_eps, inputs, state, start, rows.metadata.count)
    return gated + convolved.to(x.dtype)


def _rows_of(spec: NgramSpec, tokens: Mapping[int, int], position: int) -> list[int]:
    """The rows of the table that a position has."""
    mixed, ended, first = tokens[position] * spec.factors[0], False, 0
    found: list[int] = []
    sizes = iter(spec.sizes)
    for back in range(1, spec.size):
        ended |= position < back
        token = spec.end if ended else tokens[position - back]
        ended |= token == spec.end
        mixed ^= token * spec.factors[back]
        for _ in range(spec.heads):
            size = next(sizes)
            found.append(first + mixed % size)
            first += size
    return found
