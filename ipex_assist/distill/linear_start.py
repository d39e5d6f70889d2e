"""Weights that an EAGLE-3 head begins with: what linear maps say of the target's next hidden state, by least squares.

Loaded by train_process.py, in whose Python it runs. With n_p the target's last hidden state of position p, h_p the
others that the head reads, and e_p the embedding of token p, all normed, these are fitted at once, with a ridge:

    n_p ≈ A e_p + B h_(p-1)        (a draft's first token)
    n_p ≈ A e_p + C n_(p-1)        (those after it, for which the head's own output stands in for n)

The head computes x = F h for the first, takes its own output as x for the others, and gives x + attention(e, x) + MLP.
F is C⁻¹ B. Attention that looks at its own position only has values and outputs whose product is [A, C - 1]: its
queries and keys are the same at every position, and rotary embeddings then prefer the nearest, which is itself. A third
of its heads is left as it was, for what is to be learnt of earlier positions. The MLP gives 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

ROWS = 100_000  # positions that are fitted
RIDGE = 3e-3  # of the mean square of a value
LOOKING_AT_ITSELF = 2 / 3  # of the heads
SCORE = 24.0  # of a position for itself


@dataclass
class NormalEquations:
    """Over rows [e_p, n_(p-1), h_(p-1)] and n_p: products of each with each, and the rows themselves."""

    count: int
    inputs: torch.Tensor
    outputs: torch.Tensor
    total: torch.Tensor


def normed(rows: torch.Tensor) -> torch.Tensor:
    """Rows of mean square 1."""
    return rows * rows.square().mean(-1, keepdim=True).clamp_min(1e-12).rsqrt()


def gather(model: Any, batches: Iterable[dict[str, Any]]) -> NormalEquations:
    """Sum over batches, until there are ROWS of rows. The first position of a text has none before it."""
    width = 2 * model.hidden_size + model.fc.in_features
    found = NormalEquations(0, torch.zeros(width, width), torch.zeros(width, model.hidden_size), torch.zeros(width))
    for batch in batches:
        inside = batch["document_ids"][0, 1:] == batch["document_ids"][0, :-1]
        last = normed(batch["verifier_last_hidden_states"][0].float())
        embedded = normed(model.embed_tokens.weight[batch["input_ids"][0, 1:]].float())
        read = batch["hidden_states"][0, 1:].float().chunk(len(model.fc_norm), -1)
        inputs = torch.cat([embedded, last[:-1], *map(normed, read)], 1)[inside]
        found.inputs.addmm_(inputs.T, inputs)
        found.outputs.addmm_(inputs.T, last[1:][inside])
        found.total += inputs.sum(0)
        found.count += len(inputs)
        if found.count >= ROWS:
            break
    return found


def solve(square: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """x with square · x = wanted, by a ridge in units of each row."""
    scale = square.diagonal().clamp_min(1e-12).rsqrt()
    ridged = square * scale[:, None] * scale
    ridged.diagonal().add_(RIDGE)
    return torch.cholesky_solve(wanted * scale[:, None], torch.linalg.cholesky(ridged)) * scale[:, None]


def fit(sums: NormalEquations, hidden: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A (hidden, hidden), C (hidden, hidden), B (hidden, read): both fits have the same A."""
    e, n, h = slice(0, hidden), slice(hidden, 2 * hidden), slice(2 * hidden, None)
    inputs, outputs = sums.inputs.clone(), sums.outputs.clone()
    inputs[h, n] = 0
    inputs[n, h] = 0
    inputs[e, e] *= 2
    outputs[e] *= 2
    found = solve(inputs, outputs)
    return found[e].T, found[n].T, found[h].T


def fastest(frequencies: torch.Tensor, longest: int = 1024) -> int:
    """How many of the fastest rotary frequencies make the score by which a position sees itself most."""
    scores = torch.cos(torch.arange(longest)[:, None] * frequencies).cumsum(1) / torch.arange(1, len(frequencies) + 1)
    return int(torch.softmax(SCORE * scores, 0)[0].argmax()) + 1


@torch.no_grad()
def begin(model: Any, batches: Iterable[dict[str, Any]]) -> None:
    """Give a new Eagle3DraftModel, of one layer, fc_norm and no norm_before_residual, these weights.

    The weights of fc_norm make all values that fc reads equally large, so that it learns from all of them.
    """
    layer, hidden = model.layers[0], model.hidden_size
    sums = gather(model, batches)
    of_token, of_last, of_read = fit(sums, hidden)
    square = of_last.T @ of_last
    square.diagonal().add_(0.01 * square.diagonal().mean())
    of_hidden = torch.linalg.solve(square, of_last.T @ of_read)
    read = sums.inputs[2 * hidden :, 2 * hidden :] / sums.count
    sizes = read.diagonal().clamp_min(1e-6).sqrt()
    model.fc.weight.copy_(of_hidden * sizes)
    for norm, part in zip(model.fc_norm, sizes.chunk(len(model.fc_norm)), strict=True):
        norm.weight.copy_(1 / part)
    size = float(((of_hidden @ read) * of_hidden).sum() / hidden) ** 0.5
    layer.hidden_norm.weight.fill_(size)
    model.norm.weight.copy_(model.verifier_norm.weight)
    layer.mlp.down_proj.weight.zero_()
    look_at_itself(model, sums, torch.cat([of_token, of_last - torch.eye(hidden)], 1))


def look_at_itself(model: Any, sums: NormalEquations, gives: torch.Tensor) -> None:
    """Let attention give `gives` (hidden, 2 · hidden) times its own position's [e, x], as well as its heads can."""
    attention, hidden = model.layers[0].self_attn, model.hidden_size
    config = model.config.transformer_layer_config
    head_dim, shared = config.head_dim, config.num_attention_heads // config.num_key_value_heads
    looking = max(1, round(config.num_key_value_heads * LOOKING_AT_ITSELF))
    inputs = sums.inputs[: 2 * hidden, : 2 * hidden]
    likeliest = torch.linalg.eigh(gives @ inputs @ gives.T).eigenvectors.flip(1)[:, : looking * head_dim]
    values = likeliest.shape[1]
    attention.v_proj.weight[: looking * head_dim].zero_()
    attention.v_proj.weight[:values].copy_(likeliest.T @ gives)
    attention.o_proj.weight.zero_()
    spread = torch.nn.functional.pad(likeliest, (0, looking * head_dim - values)) / shared
    for head in range(looking * shared):
        of = slice(head // shared * head_dim, (head // shared + 1) * head_dim)
        attention.o_proj.weight[:, head * head_dim : (head + 1) * head_dim].copy_(spread[:, of])
    constant = solve(inputs, sums.total[: 2 * hidden, None])[:, 0]  # times [e, x] it is about 1
    count = fastest(model.rotary_emb.inv_freq)
    constant *= math.sqrt(SCORE * math.sqrt(head_dim) / count)
    for projection, heads in ((attention.q_proj, looking * shared), (attention.k_proj, looking)):
        for head in range(heads):
            rows = projection.weight[head * head_dim : (head + 1) * head_dim]
            rows.zero_()
            rows[:count] = constant
